"""
The client against other people's servers: qemu-nbd, nbdkit and its filters, nbd-server, and ours.
"""

import json
import os
import re
import signal
import struct

import pytest
from harness import (PENSTOCK, Failed, Nbdkit, NbdServer, QemuNbd, Server, compare_files, image_odd,
                     image_random, image_sparse, random_bytes, requires, run, start, wait_until)
from harness.process import children_marked


def one_byte(path):
    path.write_bytes(b"x")
    return path


def empty(path):
    path.write_bytes(b"")
    return path


IMAGES = {
    "random": lambda path: image_random(path, 5 << 20),
    "sparse": lambda path: image_sparse(path, 64 << 20, every=8 << 20),
    "odd": image_odd,
    "one_byte": one_byte,
    "empty": empty,
}


@pytest.fixture(params=IMAGES)
def image(request, tmp_path):
    return IMAGES[request.param](tmp_path / "image")


def copies(peer, disk, tmp_path, *args):
    """A copy from the peer is the disk, and a map of it covers all of it."""
    out = tmp_path / "out"
    run("penstock", "copy", *args, peer.uri(), out)
    compare_files(disk, out)
    found = json.loads(run("penstock", "map", "--json", peer.uri()).out)
    assert sum(e["length"] for e in found["extents"]) == os.path.getsize(disk)


def pad(disk, multiple):
    size = os.path.getsize(disk)
    os.truncate(disk, (size + multiple - 1) // multiple * multiple)


# --- reading ---

@pytest.mark.threaded
def test_read_from_qemu_nbd(tmp_path, image):
    pad(image, 512)  # its size is what qemu-nbd makes of any other
    with QemuNbd("-f", "raw", "-r", image) as peer:
        copies(peer, image, tmp_path)


@pytest.mark.threaded
def test_read_from_nbdkit(tmp_path, image):
    with Nbdkit("-r", "file", image) as peer:
        copies(peer, image, tmp_path)


def test_read_from_nbd_server(tmp_path, image):
    with NbdServer(image) as peer:
        copies(peer, image, tmp_path)


@pytest.mark.threaded
def test_read_from_penstock(tmp_path, image):
    with Server(image) as peer:
        copies(peer, image, tmp_path)


FILTERS = {
    "blocksize_policy_4k": ["--filter=blocksize-policy", "blocksize-minimum=4096",
                            "blocksize-preferred=65536", "blocksize-maximum=1M",
                            "blocksize-error-policy=error"],
    "blocksize_policy_64k": ["--filter=blocksize-policy", "blocksize-minimum=64K",
                             "blocksize-preferred=64K", "blocksize-maximum=64K",
                             "blocksize-error-policy=error"],
    "cow": ["--filter=cow"],
    "cache": ["--filter=cache"],
    "delay": ["--filter=delay", "rdelay=1ms"],
    "rate": ["--filter=rate", "rate=800M"],
    "noextents": ["--filter=noextents"],
    "noparallel": ["--filter=noparallel"],
    "multi_conn_off": ["--filter=multi-conn", "multi-conn-mode=disable"],
    "readahead": ["--filter=readahead"],
    "retry": ["--filter=retry"],
    "stats": ["--filter=stats", "statsfile=/dev/null"],
}


@pytest.mark.parametrize("name", FILTERS)
def test_read_through_filters_of_nbdkit(tmp_path, name):
    disk = image_sparse(tmp_path / "disk", 16 << 20, every=1 << 20)
    filters = [arg for arg in FILTERS[name] if arg.startswith("--")]
    parameters = [arg for arg in FILTERS[name] if not arg.startswith("--")]
    with Nbdkit("-r", *filters, "file", disk, *parameters) as peer:
        copies(peer, disk, tmp_path, "-w", "2")


def test_exitlast_of_nbdkit(tmp_path):
    """It ends with its last client: no connection of ours stays behind."""
    disk = image_sparse(tmp_path / "disk", 16 << 20, every=1 << 20)
    with Nbdkit("-r", "--filter=exitlast", "file", disk) as peer:
        run("penstock", "copy", "-w", "2", peer.uri(), tmp_path / "out")
        assert peer.program.wait() == 0
    compare_files(disk, tmp_path / "out")


@pytest.mark.parametrize("mode", ["--no-sr", "--mask-handshake=0", "--mask-handshake=1",
                                  "--mask-handshake=2"])
def test_old_ways_of_nbdkit(tmp_path, mode):
    disk = image_odd(tmp_path / "disk")
    with Nbdkit(mode, "-r", "file", disk) as peer:
        copies(peer, disk, tmp_path)


def test_oldstyle_nbdkit(tmp_path):
    disk = image_odd(tmp_path / "disk")
    with Nbdkit("-o", "-r", "file", disk) as peer:
        err = run("penstock", "copy", peer.uri(), tmp_path / "out", status=1).err
        assert "oldstyle" in err


def test_partition_of_nbdkit(tmp_path):
    """A disk whose second partition is exported: any view that a server makes is only a disk."""
    disk = image_random(tmp_path / "disk", 8 << 20)
    with open(disk, "r+b") as file:  # a partition table by hand: two entries of type 0x83
        file.seek(446)
        for start_sector, sectors in ((2048, 4096), (6144, 8192)):
            file.write(struct.pack("<B3sB3sII", 0, bytes(3), 0x83, bytes(3), start_sector, sectors))
        file.write(bytes(32) + b"\x55\xaa")
    with open(disk, "rb") as file:
        file.seek(6144 * 512)
        (tmp_path / "part").write_bytes(file.read(8192 * 512))
    with Nbdkit("-r", "--filter=partition", "file", disk, "partition=2") as peer:
        copies(peer, tmp_path / "part", tmp_path)


LARGEST = (1 << 63) - 512
LARGEST_OF = {
    "penstock": lambda: Server("-r", f"pattern:{LARGEST}"),
    "nbdkit": lambda: Nbdkit("pattern", str(LARGEST)),
}


@pytest.mark.parametrize("name", LARGEST_OF)
def test_pattern_of_8_eib(short_tmp, name):
    """The last bytes of the largest disk there is."""
    with LARGEST_OF[name]() as peer:
        assert json.loads(run("penstock", "info", "--json", peer.uri()).out)["size"] == LARGEST
        tail = LARGEST - 4096
        run("penstock", "copy", f"slice:{tail}+4096:{peer.uri()}", f"{short_tmp}/out")
        data = open(f"{short_tmp}/out", "rb").read()
        assert data[:8] == tail.to_bytes(8, "big") and len(data) == 4096


@pytest.mark.parametrize("name", ["penstock", "nbdkit", "qemu-nbd"])
def test_write_to_8_eib(tmp_path, name):
    """Data at the end of the largest disk that each peer can have, and its holes by their sizes."""
    size = LARGEST if name != "qemu-nbd" else (1 << 63) - (1 << 30)
    piece = image_random(tmp_path / "piece", 100000)
    peer = {"penstock": lambda: Server(f"null:{size}"),
            "nbdkit": lambda: Nbdkit("null", str(size)),
            "qemu-nbd": lambda: QemuNbd("--image-opts", f"driver=null-co,size={size}")}[name]()
    with peer:
        assert json.loads(run("penstock", "info", "--json", peer.uri()).out)["size"] == size
        run("penstock", "copy", piece, f"slice:{size - 100000}+100000:{peer.uri()}")
        run("penstock", "copy", f"slice:{size - 65536}+65536:{peer.uri()}", tmp_path / "out")
        assert os.path.getsize(tmp_path / "out") == 65536


# --- writing ---

@pytest.mark.threaded
@pytest.mark.parametrize("args", [[], ["--discard=unmap"], ["--shared=1"]])
def test_write_to_qemu_nbd(tmp_path, args):
    source = image_sparse(tmp_path / "source", 16 << 20)
    target = image_random(tmp_path / "target", 16 << 20, seed=9)
    with QemuNbd("-f", "raw", *args, target) as peer:
        run("penstock", "copy", source, peer.uri())
    compare_files(source, target)


@pytest.mark.threaded
def test_write_to_nbdkit(tmp_path, image):
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * os.path.getsize(image))
    with Nbdkit("file", target) as peer:
        run("penstock", "copy", image, peer.uri())
    compare_files(image, target)


@pytest.mark.threaded
def test_write_all_shapes_to_qemu_nbd(tmp_path, image):
    pad(image, 512)
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * os.path.getsize(image))
    with QemuNbd("-f", "raw", target) as peer:
        run("penstock", "copy", image, peer.uri())
    compare_files(image, target)


@pytest.mark.slow
def test_write_all_shapes_to_nbd_server(tmp_path, image):
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * os.path.getsize(image))
    with NbdServer(target, "flush = true", "fua = true", "trim = true") as peer:
        run("penstock", "copy", image, peer.uri())
    compare_files(image, target)


def test_write_to_nbd_server(tmp_path):
    source = image_sparse(tmp_path / "source", 80 << 20, every=40 << 20)
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * (80 << 20))
    with NbdServer(target, "flush = true", "fua = true", "trim = true") as peer:
        run("penstock", "copy", source, peer.uri())
    compare_files(source, target)


@pytest.mark.threaded
def test_write_to_penstock(tmp_path, image):
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * os.path.getsize(image))
    with Server(target) as peer:
        run("penstock", "copy", image, peer.uri())
    compare_files(image, target)


@pytest.mark.parametrize("name", ["blocksize_policy_4k", "blocksize_policy_64k", "cow", "cache"])
def test_write_through_filters_of_nbdkit(tmp_path, name):
    """Sectors of odd places are changed by read-modify-write, and nothing beside them."""
    source = image_odd(tmp_path / "source", size=4 << 20)
    filters = [arg for arg in FILTERS[name] if arg.startswith("--")]
    parameters = [arg for arg in FILTERS[name] if not arg.startswith("--")]
    with Nbdkit(*filters, "memory", "4M", *parameters) as peer:
        run("penstock", "copy", source, peer.uri())
        run("penstock", "copy", peer.uri(), tmp_path / "out")
        compare_files(source, tmp_path / "out")
        piece = tmp_path / "piece"
        piece.write_bytes(random_bytes(10001, seed=3))
        run("penstock", "copy", piece, f"slice:777+10001:{peer.uri()}")
        run("penstock", "copy", peer.uri(), tmp_path / "again")
    expected = bytearray(source.read_bytes())
    expected[777:777 + 10001] = piece.read_bytes()
    assert (tmp_path / "again").read_bytes() == expected


# --- errors of peers ---

def test_read_errors_of_nbdkit(tmp_path):
    with Nbdkit("--filter=error", "memory", "1M", "error-pread=ENOSPC", "error-pread-rate=100%"
                ) as peer:
        err = run("penstock", "copy", "-S", "0", peer.uri(), tmp_path / "out", status=[0, 1])
        # an empty memory disk is one hole: nothing need be read
        assert err.status == 0 or "No space left" in err.err
    disk = image_random(tmp_path / "disk", 1 << 20)
    with Nbdkit("--filter=error", "file", disk, "error-pread=EIO", "error-pread-rate=100%") as peer:
        err = run("penstock", "copy", peer.uri(), tmp_path / "out", status=1).err
        assert "failed READ" in err and "Input/output error" in err


def test_write_errors_of_nbdkit(tmp_path):
    disk = image_random(tmp_path / "disk", 1 << 20)
    with Nbdkit("--filter=error", "memory", "1M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%"
                ) as peer:
        err = run("penstock", "copy", disk, peer.uri(), status=1).err
        assert "failed WRITE" in err and "No space left" in err


def test_a_target_that_is_full(tmp_path):
    disk = image_random(tmp_path / "disk", 1 << 20)
    with Nbdkit("full", "1M") as peer:
        err = run("penstock", "copy", disk, peer.uri(), status=1).err
        assert "No space left" in err


def test_a_read_only_export(tmp_path):
    disk = image_random(tmp_path / "disk", 1 << 20)
    with Nbdkit("-r", "memory", "1M") as peer:
        err = run("penstock", "copy", disk, peer.uri(), status=1).err
        assert "for reading only" in err


def test_an_unknown_export(tmp_path):
    disk = image_random(tmp_path / "disk", 1 << 20)
    with QemuNbd("-f", "raw", "-x", "name", "-r", disk) as peer:
        err = run("penstock", "copy", peer.uri("other"), tmp_path / "out", status=1).err
        assert "no such export" in err
        run("penstock", "copy", peer.uri("name"), tmp_path / "out")
        compare_files(disk, tmp_path / "out")


def test_a_server_that_requires_tls(tmp_path):
    (tmp_path / "keys.psk").write_text("me:" + "ab" * 32 + "\n")
    with Nbdkit("--tls=require", f"--tls-psk={tmp_path}/keys.psk", "memory", "1M") as peer:
        err = run("penstock", "copy", peer.uri(), tmp_path / "out", status=1).err
        assert "requires TLS" in err and "not built in" in err


def test_a_peer_that_is_killed(tmp_path):
    """kill -9 of the server in the middle of a copy: an error, soon, with the endpoint."""
    with Nbdkit("--filter=delay", "pattern", "1G", "rdelay=20ms") as peer:
        copy = start(PENSTOCK, "copy", "-r", "64K", peer.uri(), "null:1G")
        wait_until(lambda: connections(peer.pid) > 0, what="a connection")
        peer.kill()
        assert copy.wait() == 1
        assert b"closed the connection" in copy.err() and peer.uri().encode() in copy.err()


def connections(pid):
    """Connected sockets that a process has."""
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return 0
    count = -1  # the listener
    for fd in fds:
        try:
            count += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
        except OSError:
            pass
    return count


# --- [ PROGRAM ... ] ---

@pytest.mark.threaded
@pytest.mark.parametrize("program", [
    ["nbdkit", "-f", "-r", "file"], ["nbdkit", "-r", "file"], ["qemu-nbd", "-r", "-f", "raw"],
    ["qemu-nbd", "-r", "-e", "4", "-f", "raw"]], ids=lambda p: "_".join(p[:4]))
def test_program(tmp_path, program):
    requires(program[0])
    disk = image_sparse(tmp_path / "disk", 8 << 20)
    run("penstock", "copy", "[", *program, disk, "]", tmp_path / "out")
    compare_files(disk, tmp_path / "out")


def test_program_as_target(tmp_path):
    requires("nbdkit", "qemu-nbd", "qemu-img")
    disk = image_random(tmp_path / "disk", 3 << 20)
    target = tmp_path / "target"
    target.write_bytes(bytes(3 << 20))
    run("penstock", "copy", "[", "nbdkit", "file", disk, "]", "[", "nbdkit", "file", target, "]")
    compare_files(disk, target)
    qcow2 = tmp_path / "target.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "3M")
    run("penstock", "copy", disk, "[", "qemu-nbd", "-f", "qcow2", qcow2, "]")
    run("qemu-img", "check", "-q", qcow2)
    run("qemu-img", "convert", "-O", "raw", qcow2, tmp_path / "back")
    compare_files(disk, tmp_path / "back")


def leftovers(folder):
    return [name for name in os.listdir(folder) if name.startswith("penstock-")]


def test_program_leaves_nothing(tmp_path, short_tmp):
    requires("nbdkit")
    env = {"TMPDIR": short_tmp, "PENSTOCK_TEST_PROGRAM": short_tmp}
    run("penstock", "info", "[", "nbdkit", "memory", "1M", "]", env=env)
    assert not leftovers(short_tmp)
    assert not children_marked("PENSTOCK_TEST_PROGRAM", short_tmp)


def test_program_that_fails(tmp_path, short_tmp):
    requires("nbdkit")
    env = {"TMPDIR": short_tmp}
    for program, words in (
            (["nbdkit", "no-such-plugin"], r"nbdkit exited with status 1"),
            (["sh", "-c", "exit 7"], r"sh exited with status 7"),
            (["sh", "-c", "kill -9 $$"], r"sh was killed by signal 9"),
            (["/no/such/program"], r"No such file"),
            (["no-such-program-anywhere"], r"no-such-program-anywhere"),
            ([str(tmp_path)], r"ermission denied")):
        err = run("penstock", "info", "[", *program, "]", env=env, status=1).err
        assert re.search(words, err), err
    assert not leftovers(short_tmp)


SEEN = """
import json, os, sys
fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass # the folder that is being listed
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
json.dump({"fds": fds, "env": dict(os.environ), "pid": os.getpid(), "args": sys.argv[1:],
           "blocked": status["SigBlk"].strip(), "ignored": status["SigIgn"].strip()},
          open(sys.argv[1], "w"))
"""


def test_program_gets_what_systemd_would_give(tmp_path):
    """One listening descriptor, the right LISTEN_PID, nothing of ours besides; plain signals."""
    report = tmp_path / "seen"
    run("penstock", "info", "[", "/usr/bin/python3", "-c", SEEN, report, "a b", "", "]", status=1,
        env={"LISTEN_FDNAMES": "old", "LISTEN_PID": "1"})
    seen = json.loads(report.read_text())
    assert set(seen["fds"]) == {"0", "1", "2", "3"} and seen["fds"]["3"].startswith("socket:")
    assert seen["env"]["LISTEN_FDS"] == "1" and seen["env"]["LISTEN_PID"] == str(seen["pid"])
    assert "LISTEN_FDNAMES" not in seen["env"]
    assert seen["args"][1:] == ["a b", ""]
    assert int(seen["blocked"], 16) & 0x7fff == 0
    # python ignores SIGPIPE and SIGXFSZ by itself
    assert int(seen["ignored"], 16) & 0x7fff & ~(1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_program_ends_with_us(tmp_path, short_tmp, number):
    requires("nbdkit")
    env = {"TMPDIR": short_tmp, "PENSTOCK_TEST_PROGRAM": short_tmp}
    copy = start(PENSTOCK, "copy", "-r", "4K", "-d", "1", "-w", "1", "[",
                 "nbdkit", "--filter=delay", "pattern", "1G", "rdelay=20ms", "]", "null:1G",
                 env=env)
    wait_until(lambda: len(children_marked("PENSTOCK_TEST_PROGRAM", short_tmp)) == 2,
               what="a program")
    pids = children_marked("PENSTOCK_TEST_PROGRAM", short_tmp)
    child = next(pid for pid in pids if pid != copy.pid)
    wait_until(lambda: connections(child) > 0, what="a connection")
    copy.kill(number)
    assert copy.wait() != 0
    wait_until(lambda: not children_marked("PENSTOCK_TEST_PROGRAM", short_tmp),
               what="the end of the program")
    if number != signal.SIGKILL:
        assert not leftovers(short_tmp)


# --- several connections ---

@pytest.mark.threaded
@pytest.mark.parametrize("shared", ["1", "2", "8"])
def test_limits_of_clients(tmp_path, shared):
    """qemu-nbd leaves the client above its limit waiting: the copy goes on with what it has."""
    disk = image_random(tmp_path / "disk", 4 << 20)
    with QemuNbd("-f", "raw", "-r", f"--shared={shared}", disk) as peer:
        run("penstock", "copy", "-w", "4", "-r", "64K", peer.uri(), tmp_path / "out")
        compare_files(disk, tmp_path / "out")


@pytest.mark.threaded
def test_limit_filter_of_nbdkit(tmp_path):
    disk = image_random(tmp_path / "disk", 4 << 20)
    with Nbdkit("-r", "--filter=limit", "file", disk, "limit=2") as peer:
        run("penstock", "copy", "-w", "4", "-r", "64K", peer.uri(), tmp_path / "out")
        compare_files(disk, tmp_path / "out")


# --- information ---

def test_info_of_peers(tmp_path):
    disk = image_random(tmp_path / "disk", 1 << 20)
    with QemuNbd("-f", "raw", "-D", "a description", "-x", "name", "-r", disk) as peer:
        info = json.loads(run("penstock", "info", "--json", peer.uri("name")).out)
        assert info["size"] == 1 << 20
        assert info["nbd"]["description"] == "a description"
        assert info["nbd"]["export"] == "name"
        assert "base:allocation" in info["nbd"]["contexts"]
        listed = json.loads(run("penstock", "info", "--list", "--json", peer.uri()).out)
        assert listed["exports"] == [{"name": "name", "description": "a description"}]
    with NbdServer(disk) as peer:
        listed = json.loads(run("penstock", "info", "--list", "--json", peer.uri()).out)
        assert [e["name"] for e in listed["exports"]] == ["disk"]
    with Nbdkit("memory", "1M", "--filter=exportname", "exportname-list=explicit",
                "exportname=one", "exportname=two") as peer:
        listed = json.loads(run("penstock", "info", "--list", "--json", peer.uri()).out)
        assert [e["name"] for e in listed["exports"]] == ["one", "two"]
    with QemuNbd("-f", "raw", "--shared=1", "-r", disk) as peer:  # a second client must wait
        assert json.loads(run("penstock", "info", "--json", peer.uri()).out)["size"] == 1 << 20
    with pytest.raises(Failed, match="(?s)exit 1"):
        run("penstock", "info", "nbd+unix:///?socket=/no/such/socket")
