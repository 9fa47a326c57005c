"""penstock compare: answers, exit codes, peers."""

import json
import os
import signal

import pytest
from harness import (PENSTOCK, QemuNbd, image_odd, image_random, image_sparse, run, start,
                     wait_until)


def compare(*args, status=0, **options):
    return run("penstock", "compare", *args, status=status, **options)


def write_at(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.threaded
def test_same_and_different(tmp_path):
    a = image_odd(tmp_path / "a")
    b = image_odd(tmp_path / "b")
    size = os.path.getsize(a)
    assert compare(a, b).out == f"The disks are the same: {size} bytes\n"
    assert compare("-q", a, b).out == ""
    for offset in (size - 1, 3000000, 100000, 0):
        with open(b, "rb") as file:
            file.seek(offset)
            old = file.read(1)[0]
        write_at(b, offset, bytes([old ^ 0x80]))
        for workers in ("1", "2"):
            result = compare("--workers", workers, "--request-size=64K", a, b, status=3)
            assert result.out == f"The disks differ at byte {offset}\n"
            assert result.err == ""


def test_sizes(tmp_path):
    a = image_sparse(tmp_path / "a", 3 << 20)
    b = image_sparse(tmp_path / "b", 3 << 20)
    os.truncate(b, (3 << 20) + 513)
    assert "same but for their sizes: 3145728 and 3146241" in compare(a, b).out
    assert "same but for their sizes" in compare(b, a).out
    assert "differ in size" in compare("--strict", a, b, status=3).out
    write_at(b, 3 << 20, b"x")
    assert compare(a, b, status=3).out == f"The disks differ at byte {3 << 20}\n"


def test_json(tmp_path):
    a = image_sparse(tmp_path / "a", 8 << 20)
    answer = json.loads(compare("--json", a, "null:8M", status=3).out)
    assert answer["result"] == "different" and answer["offset"] < 65536
    assert [disk["size"] for disk in answer["disks"]] == [8 << 20, 8 << 20]
    answer = json.loads(compare("--json", a, a).out)
    assert answer["result"] == "same" and "offset" not in answer
    assert answer["zeros_skipped"] > 0
    assert answer["zeros_skipped"] + answer["bytes_read"] // 2 == 8 << 20


def test_errors(tmp_path):
    a = image_random(tmp_path / "a", 1 << 20)
    result = compare(a, tmp_path / "missing", status=1)
    assert "missing" in result.err and result.out == ""
    result = compare(a, f"fault:read-error=EIO@512K:{a}", status=1)
    assert "fault:" in result.err and "offset 524288" in result.err and result.out == ""
    # A difference before the error is an answer.
    result = compare(a, f"fault:read-error=EIO@512K,flip-read@100:{a}", status=3)
    assert result.out == "The disks differ at byte 100\n"
    assert "stream" in compare("-", a, status=1).err
    compare(a, status=2)
    compare(a, a, a, status=2)
    compare("--depth=0", a, a, status=2)
    with open("/dev/full", "wb") as full:
        result = compare(a, a, status=1, stdout=full)
    assert "standard output" in result.err


def blocks_sigterm(pid):
    """Whether SIGTERM is blocked: from then on it is taken through a descriptor."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        blocked = next(line for line in file if line.startswith("SigBlk:"))
    return int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def test_interrupted():
    # Every read of one side is held, so it is not done before the signal, whenever that comes.
    program = start(PENSTOCK, "compare", "fault:hold-read:pattern:1M", "pattern:1M")
    wait_until(lambda: blocks_sigterm(program.pid), what="it waits for signals")
    program.kill(signal.SIGTERM)
    assert program.wait() == 1
    assert b"interrupted" in program.err()


@pytest.mark.threaded
def test_with_qemu_nbd(tmp_path):
    a = image_odd(tmp_path / "a", size=4 << 20)
    with QemuNbd("-f", "raw", "-r", a) as peer:
        assert "are the same" in compare(a, peer.uri()).out
        assert "are the same" in compare(peer.uri(), peer.uri()).out
        assert "at byte 77" in compare(f"fault:flip-read@77:{a}", peer.uri(), status=3).out
    # As qemu-img says, too.
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", a, a)
