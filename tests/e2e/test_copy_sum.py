"""`penstock copy --sum`: the line of `penstock sum SOURCE`, from and to every kind of endpoint."""

import hashlib
import json
import os
import signal
import struct

import pytest
from harness import (PENSTOCK, Nbdkit, QemuNbd, compare_files, image_odd, image_random,
                     image_sparse, random_bytes, run, start, wait_until)

MIB = 1 << 20
BLOCK = 65536


def blkhash(path, digest="sha256"):
    """The reference: digests of the blocks, and the length, hashed."""
    outer = hashlib.new(digest)
    with open(path, "rb") as file:
        size = 0
        while block := file.read(BLOCK):
            outer.update(hashlib.new(digest, block).digest())
            size += len(block)
    outer.update(struct.pack("<Q", size))
    return outer.hexdigest()


def holes(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def small(path, size):
    path.write_bytes(random_bytes(size))
    return path


@pytest.fixture(name="disks", scope="module")
def _disks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disks")
    return [
        image_random(folder / "random", 3 * MIB),
        image_sparse(folder / "sparse", 9 * MIB),
        image_odd(folder / "odd"),
        small(folder / "empty", 0),
        small(folder / "one", 1),
        small(folder / "65537", BLOCK + 1),
        holes(folder / "holes", 2 * MIB + 1000),
    ]


def copy_sum(source, target, *args, **options):
    return run("penstock", "copy", "--sum", *args, source, target, **options).out


@pytest.mark.threaded
def test_files(disks, tmp_path):
    target = tmp_path / "target"
    assert run("penstock", "sum", *disks).out == "".join(f"{blkhash(d)}  {d}\n" for d in disks)
    for disk in disks:
        for more in (["--workers=1"], ["--workers=4", "--sparse=0", "--request-size=64K"]):
            assert copy_sum(disk, target, *more) == f"{blkhash(disk)}  {disk}\n"
            compare_files(disk, target)


def test_json_and_digests(disks, tmp_path):
    for digest in ("sha256", "SHA512", "sha1"):
        said = run("penstock", "copy", f"--sum={digest}", "--json", disks[2], tmp_path / "out").out
        assert json.loads(said)["sum"] == {"digest": digest.lower(), "block_size": BLOCK,
                                           "value": blkhash(disks[2], digest.lower())}
    assert "sum" not in json.loads(run("penstock", "copy", "--json", disks[2], "null:").out)
    assert run("penstock", "copy", disks[2], "null:").out == ""


@pytest.mark.threaded
def test_servers(disks, tmp_path):
    for disk in disks[:3]:
        target = tmp_path / "target"
        target.write_bytes(b"\xff" * (os.path.getsize(disk) + BLOCK))  # zeros have to be made
        with Nbdkit("file", disk) as a, Nbdkit("file", target) as b:
            want = run("penstock", "sum", a.uri()).out
            assert want.split()[0] == blkhash(disk)
            assert copy_sum(a.uri(), tmp_path / "out", "--workers=4") == want
            compare_files(disk, tmp_path / "out")
            assert copy_sum(disk, b.uri(), "--size-mismatch=ok") == f"{blkhash(disk)}  {disk}\n"
        with open(target, "rb") as file:
            assert file.read(os.path.getsize(disk)) == disk.read_bytes()
            assert file.read() == b"\xff" * BLOCK


def test_pipes(disks, tmp_path):
    for disk in disks:
        out = tmp_path / "out"
        with open(out, "wb") as file:
            through = start("cat", stdin=-1, stdout=file)
            pipe = through.popen.stdin
            said = copy_sum(disk, f"fd:{pipe.fileno()}", pass_fds=[pipe.fileno()])
            pipe.close()
            assert through.wait() == 0
        assert said == f"{blkhash(disk)}  {disk}\n"
        compare_files(disk, out)
        assert copy_sum("-", out, stdin=disk.read_bytes()) == f"{blkhash(disk)}  -\n"
        compare_files(disk, out)


def test_no_sum_after_a_failure(disks, tmp_path):
    target = tmp_path / "target"
    for source in ("fault:read-error=EIO@2M:pattern:8M", tmp_path / "nothing"):
        assert copy_sum(source, target, status=1) == ""
        assert not target.exists()
    assert copy_sum("pattern:8M", "fault:write-error=ENOSPC@3M:memory:8M", status=1) == ""
    err = run("penstock", "copy", "--sum=nonsense", disks[0], target, status=2).err
    assert "nonsense" in err and not target.exists()
    err = run("penstock", "copy", "--sum", disks[0], "-", status=2).err
    assert "--sum and the disk" in err


@pytest.mark.threaded
def test_signal(disks, tmp_path):
    target = tmp_path / "target"
    with QemuNbd("-r", "-f", "raw", disks[0]) as server:
        program = start(PENSTOCK, "copy", "--sum", server.uri(), target, "--rate=64K")
        wait_until(lambda: target.exists() and os.stat(target).st_blocks, what="the first write")
        program.kill(signal.SIGINT)
        assert program.wait() == 1
        assert program.out() == b"" and b"interrupted" in program.err()
    assert not target.exists()
