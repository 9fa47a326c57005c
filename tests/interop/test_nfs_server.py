"""The NFS driver against nfs-ganesha: the right bytes both ways, also over a server's restart."""

import os
import shutil
import tempfile
import threading

import nbd
import pytest

from harness import PENSTOCK, Server, random_bytes, run, start, wait_until
from harness.nfs import Ganesha, requires_ganesha, requires_libnfs

MIB = 1 << 20
SIZES = [0, 1, 511, 4097, MIB + 3, 3 * MIB - 1]


def ganesha():
    """A generator for fixtures: a server on a new folder."""
    requires_libnfs()
    requires_ganesha()
    folder = tempfile.mkdtemp(prefix="psnfs", dir="/dev/shm")  # a tmpfs: it has file handles
    try:
        with Ganesha(folder) as peer:
            yield peer
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", name="server")
def _server():
    yield from ganesha()


@pytest.fixture(name="own_server")
def _own_server():
    """One that the test may kill: a program that a test starts ends with it."""
    yield from ganesha()


def put(server, name, data):
    with open(os.path.join(server.folder, name), "wb") as file:
        file.write(data)


def get(server, name):
    with open(os.path.join(server.folder, name), "rb") as file:
        return file.read()


@pytest.mark.parametrize("size", SIZES)
def test_there_and_back(server, size, tmp_path):
    data = random_bytes(size, seed=size)
    (tmp_path / "in").write_bytes(data)
    run("penstock", "copy", tmp_path / "in", server.url(f"a{size}"))
    assert get(server, f"a{size}") == data
    run("penstock", "copy", server.url(f"a{size}"), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data


def test_sum_compare_info(server, tmp_path):
    data = random_bytes(2 * MIB + 77, seed=3)
    (tmp_path / "in").write_bytes(data)
    put(server, "disk", data)
    url = server.url("disk")
    assert run("penstock", "sum", url).out.split()[0] == \
        run("penstock", "sum", tmp_path / "in").out.split()[0]
    run("penstock", "compare", tmp_path / "in", url)
    put(server, "other", data[:-1] + bytes([data[-1] ^ 1]))
    run("penstock", "compare", server.url("other"), url, status=3)
    out = run("penstock", "info", url).out
    assert str(len(data)) in out and "read size" in out, out


def test_a_target_is_cut_and_grown(server, tmp_path):
    """A target that is there has the size of the source afterwards."""
    data = random_bytes(70000, seed=4)
    (tmp_path / "in").write_bytes(data)
    for old in (0, 1, 200000):
        put(server, "target", b"x" * old)
        run("penstock", "copy", tmp_path / "in", server.url("target"))
        assert get(server, "target") == data


def test_a_subfolder(server, tmp_path):
    os.mkdir(os.path.join(server.folder, "sub"))
    put(server, "sub/disk", b"below" * 1000)
    run("penstock", "copy", server.url("sub/disk"), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"below" * 1000


def test_what_is_not_there(server):
    assert "no such file" in run("penstock", "info", server.url("none"), status=1).err
    os.makedirs(os.path.join(server.folder, "folder"), exist_ok=True)
    assert "directory" in run("penstock", "info", server.url("folder"), status=1).err


@pytest.mark.threaded
def test_many_in_flight(server, tmp_path):
    """Many requests of several workers, each with a connection, hit the right places."""
    data = random_bytes(6 * MIB + 5, seed=6)
    (tmp_path / "in").write_bytes(data)
    many = ("--workers", "3", "--depth", "32", "--request-size", "64K")
    run("penstock", "copy", *many, tmp_path / "in", server.url("many"))
    assert get(server, "many") == data
    run("penstock", "copy", *many, server.url("many"), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data


def test_served_as_nbd(server):
    """Reads, writes, FUA, zeros and flushes of odd places."""
    model = bytearray(random_bytes(300001, seed=8))
    put(server, "nbd", bytes(model))
    with Server(server.url("nbd")) as served:
        handle = nbd.NBD()
        handle.connect_uri(served.uri())
        assert handle.get_size() == len(model)
        for step, (offset, length) in enumerate([(0, 1), (4095, 2), (1000, 70001), (300000, 1)]):
            block = random_bytes(length, seed=step)
            handle.pwrite(block, offset, nbd.CMD_FLAG_FUA if step % 2 else 0)
            model[offset:offset + length] = block
        handle.zero(5000, 7)
        model[7:5007] = bytes(5000)
        handle.flush()
        assert handle.pread(len(model), 0) == model
        handle.shutdown()
    assert get(server, "nbd") == model


def restart(server):
    server.kill()
    assert server.start()


def test_restart_while_reading(own_server, tmp_path):
    """kill -9 in the middle of a copy: what was not answered is asked again, nothing is missing."""
    data = random_bytes(4 * MIB + 9, seed=9)
    put(own_server, "long", data)
    out = tmp_path / "out"
    program = start(PENSTOCK, "copy", "--depth", "8", "--request-size", "64K",
                    "fault:delay-read=10ms:" + own_server.url("long", reconnect_delay=600), out)
    wait_until(lambda: (out.exists() and out.stat().st_blocks > 0) or not program.running(),
               what="the first bytes")
    restart(own_server)
    assert program.wait() == 0, program.describe()
    assert out.read_bytes() == data


def test_restart_while_writing(own_server, tmp_path):
    """kill -9 in the middle of a copy: unless all of it was written anew, that is said."""
    data = random_bytes(4 * MIB + 9, seed=10)
    (tmp_path / "in").write_bytes(data)
    program = start(PENSTOCK, "copy", "--depth", "8", "--request-size", "64K",
                    f"fault:delay-read=20ms:{tmp_path / 'in'}",
                    own_server.url("w", reconnect_delay=600))
    target = os.path.join(own_server.folder, "w")
    wait_until(lambda: (os.path.exists(target) and os.stat(target).st_blocks > 0)
               or not program.running(), what="the first bytes")
    restart(own_server)
    status = program.wait()
    assert (status == 0 and get(own_server, "w") == data) or \
        (status == 1 and b"write verifier has changed" in program.err()), program.describe()


def test_restart_between_fua_writes(own_server):
    """What was written with FUA is safe: a restart is only a wait."""
    put(own_server, "fua", bytes(MIB))
    with Server(own_server.url("fua", reconnect_delay=600)) as served:
        handle = nbd.NBD()
        handle.connect_uri(served.uri())
        handle.pwrite(b"1" * 4096, 0, nbd.CMD_FLAG_FUA)
        restarts = threading.Thread(target=restart, args=(own_server,))
        restarts.start()
        for i in range(1, 40):
            handle.pwrite(bytes([i]) * 4096, 4096 * i, nbd.CMD_FLAG_FUA)
        restarts.join()
        assert handle.pread(4096, 0) == b"1" * 4096
        handle.flush()
        handle.shutdown()
    written = get(own_server, "fua")
    assert all(written[4096 * i:4096 * (i + 1)] == bytes([i]) * 4096 for i in range(1, 40))
