"""
The items of docs/nbd-checklist.md for servers that need a disk, a server or a peer of their own:
durability, what files refuse, how long answers are cut. The number in a test's name is the item's.
"""

import os
import shutil
import struct
import tempfile

import pytest

from harness import Server, image_random, image_sparse, random_bytes
from harness import lyingnbd, rawnbd as nbd
from harness.rawnbd import Closed, connect

MIB = 1 << 20
MODES = ("simple", "structured", "extended")


# 3.7, 3.9: what was promised by a header


@pytest.mark.parametrize("mode", MODES)
def test_s111_s125_a_file_that_shrinks_while_it_is_sent(tmp_path, mode):
    """The header says success and the payload cannot follow: nothing is made up for it."""
    size = 24 * MIB
    disk = image_random(tmp_path / "disk", size)
    want = disk.read_bytes()
    with Server("-r", disk) as server, connect(server.socket, mode) as one:
        one.request(nbd.READ, 0, size, flags=0 if mode == "simple" else nbd.DF)
        got = one.get(64)  # it has begun, and waits for us
        os.truncate(disk, MIB)
        try:
            got += one.get({"simple": 16, "structured": 28, "extended": 40}[mode] + size - 64)
            whole = True
        except Closed:
            whole = False
        if whole and mode != "simple" and not struct.unpack(">IH", got[:6])[1] & 1:
            last = one.chunk()
            if last.type in (nbd.ERROR, nbd.ERROR_OFFSET):
                whole = False  # the rest was padding, and said to be
        if whole:
            assert got[len(got) - size:] == want
        with connect(server.socket, mode) as two:
            assert two.read(0, 512) == want[:512]


def test_s128_only_what_was_written_is_read(tmp_path):
    """Reads that race with writes see old bytes and new ones, and never any others."""
    disk = tmp_path / "disk"
    disk.write_bytes(b"a" * MIB)
    with Server(disk) as server, connect(server.socket, "simple") as one:
        for n in range(60):
            byte = b"ab"[n % 2:][:1]
            one.request(nbd.WRITE, 0, MIB // 4, cookie=1000 + n, payload=byte * (MIB // 4))
            one.request(nbd.READ, 1000, 100000, cookie=n)
        for _ in range(120):
            error, cookie = one.chunk()
            assert error == 0
            if cookie < 1000:
                assert set(one.get(100000)) <= set(b"ab")
    with Server("memory:1M") as server, connect(server.socket) as one:
        assert one.read(0, MIB, nbd.DF) == bytes(MIB)


# 3.8 durability


def test_s113_flush_does_not_wait_for_what_is_in_flight(tmp_path):
    gate = tmp_path / "gate"
    with Server(f"fault:hold-write={gate}@0:memory:1M") as server:
        with connect(server.socket, "simple") as one:
            one.request(nbd.WRITE, 0, 512, cookie=1, payload=b"w" * 512)
            assert one.call(nbd.FLUSH, cookie=2).cookie == 2
            gate.touch()
            assert one.result() == (0, b"", [], 1, "")
            assert one.call(nbd.FLUSH, cookie=3).error == 0
            assert one.read(0, 512) == b"w" * 512


def test_s120_no_flush_is_promised_where_there_is_none():
    with Server("fault:no-flush,no-fua:memory:1M") as server, connect(server.socket) as one:
        assert not one.flags & (nbd.SEND_FLUSH | nbd.SEND_FUA)
        assert one.call(nbd.FLUSH).error == nbd.EINVAL
        assert one.write(0, bytes(512), flags=nbd.FUA) == nbd.EINVAL
        assert one.call(nbd.READ, 0, 512).error == 0
    with lyingnbd.LyingServer(flags=lyingnbd.HAS_FLAGS) as peer:
        with Server(peer.uri()) as server, connect(server.socket) as one:
            assert not one.flags & (nbd.SEND_FLUSH | nbd.SEND_FUA | nbd.SEND_TRIM)


# 3.10 zeros, where a file system or disk refuses


@pytest.mark.parametrize("fault", ["", "fault:no-zero,no-discard:"])
@pytest.mark.parametrize("folder", ["/dev/shm", "/var/tmp"])
def test_s145_zeroes_where_fallocate_can_not(folder, fault):
    """tmpfs has no ZERO_RANGE: zeros that shall keep their space are written."""
    where = tempfile.mkdtemp(prefix="ps", dir=folder)
    try:
        disk = f"{where}/disk"
        with open(disk, "wb") as file:
            file.write(b"z" * MIB)
        with Server(f"{fault}{disk}") as server, connect(server.socket) as one:
            assert one.call(nbd.WRITE_ZEROES, 4096, 65536, flags=nbd.NO_HOLE).error == 0
            assert one.call(nbd.WRITE_ZEROES, 100001, 70001).error == 0
            assert one.call(nbd.WRITE_ZEROES, 200000, 512, flags=nbd.FUA).error == 0
            want = bytearray(b"z" * MIB)
            for offset, length in ((4096, 65536), (100001, 70001), (200000, 512)):
                want[offset:offset + length] = bytes(length)
            assert one.read(0, MIB) == want
            if one.flags & nbd.SEND_FAST_ZERO:
                flags = nbd.FAST_ZERO | nbd.NO_HOLE
                error = one.call(nbd.WRITE_ZEROES, 512 << 10, 65536, flags=flags).error
                assert error in (0, nbd.ENOTSUP)
                assert one.read(512 << 10, 65536) == (b"z" if error else b"\0") * 65536
    finally:
        shutil.rmtree(where)


@pytest.mark.parametrize("error, wire", [("ENOSPC", nbd.ENOSPC), ("EIO", nbd.EIO),
                                         ("EDQUOT", nbd.ENOSPC), ("EFBIG", nbd.ENOSPC)])
def test_s145_other_errors_of_zeroes_are_told(error, wire):
    with Server(f"fault:zero-error={error}:memory:1M") as server, connect(server.socket) as one:
        assert one.call(nbd.WRITE_ZEROES, 0, 4096).error == wire
        assert one.call(nbd.READ, 0, 512).error == 0


# 3.11, 3.13 block status and holes


def test_s153_what_is_no_hole_has_its_space(tmp_path):
    disk = image_sparse(tmp_path / "disk", 16 * MIB, data=256 << 10, every=4 * MIB)
    with Server(disk) as server, connect(server.socket) as one:
        assert one.call(nbd.WRITE_ZEROES, MIB, 65536, flags=nbd.NO_HOLE).error == 0
        at = promised = 0
        with open(disk, "rb") as file:
            for length, flags in one.status(0, 16 * MIB):
                if not flags & 1:
                    promised += length
                    if not flags & 2:  # data: from its first to its last byte
                        assert os.lseek(file.fileno(), at, os.SEEK_DATA) == at
                        assert os.lseek(file.fileno(), at, os.SEEK_HOLE) >= at + length
                at += length
        assert promised <= os.stat(disk).st_blocks * 512


@pytest.mark.parametrize("length", [(1 << 32) - 512, 1 << 32, 5 << 30])
def test_b177_holes_have_32_bits(length):
    """A read of more than 4 GiB, all of it a hole: refused, or in holes that fit."""
    with Server("null:16G") as server, connect(server.socket, "extended") as one:
        result = one.call(nbd.READ, 4096, length)
        holes = [chunk for chunk in result.chunks if chunk.type == nbd.OFFSET_HOLE]
        if result.error:
            assert result.error == nbd.EOVERFLOW and not holes
        else:
            assert sum(int.from_bytes(hole.data[8:], "big") for hole in holes) == length
        assert one.call(nbd.READ, 0, 512).error == 0


# 3.16 what is easily forgotten


@pytest.mark.parametrize("cache", ["none", "writethrough", "writeback"])
def test_s191_any_alignment_with_any_cache(tmp_path, cache):
    disk = image_random(tmp_path / "disk", MIB + 777)
    want = bytearray(disk.read_bytes())
    with Server(f"--cache={cache}", disk) as server, connect(server.socket) as one:
        for n, (offset, length) in enumerate(((1, 1), (511, 3), (4095, 4098), (MIB, 777),
                                              (12345, 300000), (MIB + 776, 1), (0, MIB + 777))):
            assert one.read(offset, length) == want[offset:offset + length]
            data = random_bytes(length, seed=n)
            assert one.write(offset, data, flags=nbd.FUA if n % 2 else 0) == 0
            want[offset:offset + length] = data
            assert one.read(0, MIB + 777) == want
        assert one.call(nbd.WRITE_ZEROES, 777, 100000).error == 0
        want[777:100777] = bytes(100000)
        assert one.call(nbd.FLUSH).error == 0
    assert disk.read_bytes() == want
