"""
The server and the clients that people use: qemu-img, qemu-io, nbdcopy, nbdinfo, libnbd, nbdkit's
nbd plugin, fio. One server for all, with a disk of each shape.
"""

import json
import os

import nbd
import pytest

from harness import (Server, image_odd, image_random, image_sparse, nbd_uri, random_bytes, requires,
                     run, start, wait_until)

MIB = 1 << 20
HUGE = (1 << 63) - 512
HUGE_QEMU = (1 << 63) - (1 << 30)  # it rounds to its largest alignment
SIZES = {"random": 4 * MIB, "sparse": 64 * MIB, "empty": 16 * MIB, "one": 1,
         "nothing": 0, "odd": 3 * MIB + 12345}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server; .disks has the files behind the exports, .folder is where they lie."""
    folder = tmp_path_factory.mktemp("peers")
    disks = {name: folder / name for name in SIZES}
    image_random(disks["random"], SIZES["random"], seed=3)
    image_sparse(disks["sparse"], SIZES["sparse"], data=100000, every=8 * MIB)
    image_sparse(disks["empty"], SIZES["empty"], data=0)
    image_random(disks["one"], 1, seed=4)
    image_random(disks["nothing"], 0, seed=4)
    image_odd(disks["odd"])
    args = []
    for name, disk in disks.items():
        args += ["--export", name, "--description", f"about {name}", disk]
    args += ["--export", "huge", f"null:{HUGE}"]
    args += ["--export", "largest for QEMU", f"null:{HUGE_QEMU}"]
    args += ["--export", "scratch", f"memory:{32 * MIB}"]
    writable = folder / "writable"
    image_random(writable, SIZES["odd"], seed=5)
    args += ["--export", "writable", writable]
    with Server(*args) as server:
        server.disks = disks
        server.writable = writable
        yield server


def same(disk, data):
    """What came is the disk, but for zeros up to the next sector (QEMU rounds up)."""
    want = disk.read_bytes()
    assert data[:len(want)] == want
    assert len(data) - len(want) < 512 and not any(data[len(want):])


# qemu-img and qemu-io


@pytest.mark.parametrize("name", SIZES)
def test_qemu_img_reads(site, tmp_path, name):
    uri = site.uri(name)
    info = json.loads(run("qemu-img", "info", "--output=json", uri).out)
    assert info["virtual-size"] == (SIZES[name] + 511) // 512 * 512
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, tmp_path / "out")
    same(site.disks[name], (tmp_path / "out").read_bytes())
    if SIZES[name] % 512 == 0:
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", uri, site.disks[name])
    extents = json.loads(run("qemu-img", "map", "--output=json", uri).out)
    assert sum(extent["length"] for extent in extents) == info["virtual-size"]
    if name == "empty":
        assert all(extent["zero"] for extent in extents)
    if name == "sparse":
        assert sum(extent["length"] for extent in extents if extent["data"]) < MIB


@pytest.mark.parametrize("options", [[], ["-W", "-m", "16"], ["-S", "0"], ["-n"]])
def test_qemu_img_writes(site, tmp_path, options):
    source = image_sparse(tmp_path / "disk", 32 * MIB, data=3 * MIB, every=8 * MIB)
    uri = site.uri("scratch")
    run("qemu-img", "convert", "-n", *options, "-f", "raw", "-O", "raw", source, uri)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", uri, source)
    run("qemu-img", "bench", "-c", "200", "-d", "32", "-s", "16k", "-f", "raw", uri)
    run("qemu-img", "bench", "-w", "-c", "200", "-d", "32", "-s", "16k", "--flush-interval=50",
        "-f", "raw", uri)


def test_qemu_io(site):
    commands = ["write -P 0x5a 1M 3M", "read -P 0x5a 1M 3M", "write -z 1500k 100k",
                "read -P 0 1500k 100k", "write -z -u 2M 64k", "read -P 0 2M 64k",
                "write -f -P 0x77 12345 777", "read -P 0x77 12345 777", "discard 3M 64k",
                "aio_write -P 1 8M 1M", "aio_write -P 2 9M 1M", "aio_flush", "read -P 1 8M 1M",
                "read -P 2 9M 1M", "flush"]
    args = [word for command in commands for word in ("-c", command)]
    result = run("qemu-io", "-f", "raw", *args, site.uri("scratch"))
    assert "error" not in result.out + result.err and "failed" not in result.out


def test_qemu_img_and_eight_exbibytes(site):
    uri = site.uri("largest for QEMU")
    info = json.loads(run("qemu-img", "info", "--output=json", uri).out)
    assert info["virtual-size"] == HUGE_QEMU
    run("qemu-io", "-f", "raw", "-c", f"read -P 0 {HUGE_QEMU - 512} 512", "-c", "write -z 1E 1G",
        uri)


# libnbd's tools


@pytest.mark.parametrize("name", SIZES)
def test_nbdcopy_reads(site, tmp_path, name):
    for options in ([], ["-C", "2", "-R", "16", "--request-size=1048576"], ["--synchronous"]):
        out = tmp_path / "out"
        out.write_bytes(bytes(SIZES[name]))
        run("nbdcopy", *options, site.uri(name), out)
        assert out.read_bytes() == site.disks[name].read_bytes()


def test_nbdcopy_writes(site, tmp_path):
    source = image_odd(tmp_path / "disk")
    for options in (["--flush"], ["-C", "4", "--flush", "--destination-is-zero"], ["-S", "512"]):
        site.writable.write_bytes(b"")
        os.truncate(site.writable, SIZES["odd"])
        run("nbdcopy", *options, source, site.uri("writable"))
        assert site.writable.read_bytes() == source.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("tool", ["nbdcopy", "qemu-img", "nbdkit"])
def test_all_shapes_are_written(site, tmp_path, short_tmp, name, tool):
    """By each tool into a disk full of other bytes; QEMU wants whole sectors."""
    source = tmp_path / "source"
    source.write_bytes(site.disks[name].read_bytes())
    if tool == "qemu-img":
        os.truncate(source, (SIZES[name] + 511) // 512 * 512)
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * os.path.getsize(source))
    with Server(target) as server:
        if tool == "nbdcopy":
            run("nbdcopy", "--flush", source, server.uri())
        elif tool == "qemu-img":
            run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, server.uri())
        else:
            run("nbdkit", "-U", f"{short_tmp}/proxy", "nbd", f"socket={server.socket}",
                "--run", f'nbdcopy --flush "{source}" "$uri" && nbdcopy "$uri" "{tmp_path}/back"')
            assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert target.read_bytes() == source.read_bytes()


def test_nbdinfo(site):
    whole = json.loads(run("nbdinfo", "--list", "--json", nbd_uri(site.socket)).out)
    found = {export["export-name"]: export for export in whole["exports"]}
    assert set(SIZES) < set(found)
    for name, size in SIZES.items():
        export = found[name]
        assert export["export-size"] == size
        assert export["description"] == f"about {name}"
        assert export["contexts"] == ["base:allocation"]
        assert export["can_multi_conn"] and export["can_flush"] and export["can_fua"]
        assert export["block_size_minimum"] == 1
        assert not export["is_read_only"]
    run("nbdinfo", "--can", "df", site.uri("one"))
    for name in SIZES:
        rows = json.loads(run("nbdinfo", "--map", "--json", site.uri(name)).out)
        assert sum(row["length"] for row in rows) == SIZES[name]
        if name == "empty":
            assert [row["type"] for row in rows] == [3]
    totals = json.loads(run("nbdinfo", "--map", "--totals", "--json", site.uri("sparse")).out)
    assert sum(row["size"] for row in totals if row["type"] == 0) < MIB


# libnbd


def handle(site, name, structured=True, contexts=True):
    """A connected libnbd handle with the strict checks off, so that all we say is sent."""
    h = nbd.NBD()
    h.set_strict_mode(0)
    h.set_request_structured_replies(structured)
    if contexts:
        h.add_meta_context("base:allocation")
    h.connect_uri(site.uri(name))
    return h


@pytest.mark.parametrize("structured", [True, False])
def test_libnbd_commands(site, structured):
    h = handle(site, "scratch", structured)
    assert h.get_structured_replies_negotiated() == structured
    assert h.get_size() == 32 * MIB and not h.is_read_only()
    assert h.can_multi_conn() and h.can_zero() and h.can_trim()
    data = random_bytes(2 * MIB + 333)
    h.pwrite(data, 1001)
    assert h.pread(len(data), 1001) == data
    if structured:
        h.pread(len(data), 1001, nbd.CMD_FLAG_DF)
        pieces = []
        h.pread_structured(100000, 1001, lambda buf, at, kind, err: pieces.append((at, len(buf))))
        assert sum(length for _, length in pieces) == 100000
    h.zero(100000, 2002)
    h.zero(100000, 300000, nbd.CMD_FLAG_NO_HOLE)
    assert h.pread(100000, 2002) == bytes(100000) == h.pread(100000, 300000)
    if h.can_fast_zero():
        h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
        assert h.pread(65536, 0) == bytes(65536)
    h.trim(65536, 65536)
    h.flush()
    if h.can_cache():
        h.cache(MIB, 0)
    if structured:
        extents = []
        h.block_status(32 * MIB, 0, lambda name, at, rows, err: extents.extend(rows))
        assert sum(extents[::2]) == 32 * MIB
        one = []
        h.block_status(MIB, 0, lambda name, at, rows, err: one.extend(rows), nbd.CMD_FLAG_REQ_ONE)
        assert len(one) == 2
    for call, code in ((lambda: h.pread(1, 32 * MIB), "EINVAL"),
                       (lambda: h.pwrite(b"x", 32 * MIB), "ENOSPC"),
                       (lambda: h.zero(2, 32 * MIB - 1), "ENOSPC"),
                       (lambda: h.trim(1, 32 * MIB), "EINVAL"),
                       (lambda: h.pwrite(b"x", 0, nbd.CMD_FLAG_DF), "EINVAL")):
        with pytest.raises(nbd.Error) as caught:
            call()
        assert caught.value.errno == code
    h.zero(32 * MIB, 0)
    h.shutdown()


@pytest.mark.threaded
def test_libnbd_hundreds_in_flight(site):
    h = handle(site, "scratch")
    rounds, length = 512, 20000
    cookies = []
    for n in range(rounds):
        cookies.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([n & 255]) * length),
                                    n * length))
    def finish():
        while cookies:
            h.poll(-1)
            done = [cookie for cookie in cookies if h.aio_command_completed(cookie)]
            cookies[:] = [cookie for cookie in cookies if cookie not in done]
    finish()
    buffers = [nbd.Buffer(length) for _ in range(rounds)]
    for n, buffer in enumerate(buffers):
        cookies.append(h.aio_pread(buffer, n * length))
    finish()
    for n, buffer in enumerate(buffers):
        assert buffer.to_bytearray() == bytes([n & 255]) * length
    h.zero(32 * MIB, 0)
    h.shutdown()


def test_libnbd_several_connections_see_each_other(site):
    handles = [handle(site, "writable") for _ in range(4)]
    assert handles[0].can_multi_conn()
    for n, h in enumerate(handles):
        h.pwrite(bytes([n + 1]) * 50000, n * 50000)
    handles[0].flush()
    for h in handles:
        for n in range(4):
            assert h.pread(50000, n * 50000) == bytes([n + 1]) * 50000
    assert site.writable.read_bytes()[:200000] == b"".join(bytes([n + 1]) * 50000
                                                           for n in range(4))
    for h in handles:
        h.shutdown()


def test_libnbd_big_payload(site):
    h = handle(site, "scratch")
    data = random_bytes(MIB) * 32
    h.pwrite(data, 0)
    assert h.pread(32 * MIB, 0) == data
    h.zero(32 * MIB, 0)
    h.shutdown()


def test_libnbd_eight_exbibytes(site):
    h = handle(site, "huge")
    assert h.get_size() == HUGE
    assert h.pread(512, HUGE - 512) == bytes(512)
    h.zero(0xFFFFFE00, HUGE - 0xFFFFFE00)
    extents = []
    h.block_status(0xFFFFFE00, 1 << 62, lambda name, at, rows, err: extents.extend(rows))
    assert extents == [0xFFFFFE00, 3]
    h.shutdown()


# nbdkit as a proxy, fio


def test_nbdkit_proxy(site, tmp_path, short_tmp):
    requires("nbdkit")
    socket = f"{short_tmp}/proxy"
    proxy = start("nbdkit", "-f", "-U", socket, "nbd", f"socket={site.socket}", "export=scratch")
    wait_until(lambda: os.path.exists(socket), what="nbdkit's socket")
    source = image_sparse(tmp_path / "disk", 32 * MIB, data=MIB, every=4 * MIB)
    run("nbdcopy", source, nbd_uri(socket))
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", site.uri("scratch"), source)
    run("nbdcopy", nbd_uri(socket), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    proxy.kill(15)
    proxy.wait()


@pytest.mark.parametrize("block", ["4k", "64k"])
def test_fio_verifies(site, block):
    requires("fio")
    run("fio", "--name=t", "--ioengine=nbd", f"--uri={nbd_uri(site.socket, 'scratch')}",
        "--rw=randwrite", f"--bs={block}", "--size=16M", "--iodepth=32", "--verify=crc32c",
        "--verify_fatal=1", "--randseed=7", "--thread=0", cwd=os.path.dirname(site.socket))
