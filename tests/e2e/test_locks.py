"""
Locks on disks, against QEMU's own tools: who keeps whom out, in both directions.

What QEMU 7.2's tools hold on a raw file (F_OFD locks, /proc/locks), which is what the table below
follows: qemu-io and qemu-nbd share writing with others (a VM does not, nor does qemu-img convert);
qemu-nbd lets nobody resize.
"""

import os

import pytest
from harness import PENSTOCK, QemuNbd, image_random, requires, run, start, wait_until


class QemuIo:
    """qemu-io that has the disk open until the block ends."""

    def __init__(self, disk, *args):
        requires("qemu-io")
        reader, self.writer = os.pipe()
        self.program = start("qemu-io", "-f", "raw", *args, disk, stdin=reader)
        os.close(reader)

    def __enter__(self):
        # Its answer to a command shows that the disk is open.
        os.write(self.writer, b"length\n")
        wait_until(lambda: b"1 MiB" in self.program.out() or not self.program.running(),
                   what="qemu-io has the disk open")
        assert self.program.running(), self.program.describe()
        return self

    def __exit__(self, kind, value, traceback):
        os.close(self.writer)
        self.program.wait()


class Held:
    """A penstock command that is in the middle of it until the block ends (FLAG exists)."""

    def __init__(self, tmp_path, *command):
        self.flag = tmp_path / "go"
        self.program = start(PENSTOCK, *[str(word).replace("FLAG", str(self.flag))
                                         for word in command])

    def __enter__(self):
        held = f"{self.flag}.held"
        wait_until(lambda: os.path.exists(held) or not self.program.running(),
                   what="it has opened the disk and begun to read")
        assert self.program.running(), self.program.describe()
        return self

    def __exit__(self, kind, value, traceback):
        self.flag.touch()
        assert self.program.wait() == 0, self.program.describe()


def reads(disk, *args):
    return run("penstock", "compare", "-q", *args, disk, disk, status=None)


def writes(disk, *args):
    return run("penstock", "copy", "-n", *args, "null:1M", disk, status=None)


def resizes(disk):
    return run("penstock", "copy", "null:1M", disk, status=None)


def qemu_writes(disk):
    return run("qemu-io", "-f", "raw", "-c", "write 0 512", disk, status=None)


def qemu_converts(disk):
    return run("qemu-img", "convert", "-f", "raw", "-O", "raw", disk, f"{disk}.out", status=None)


def refused(result):
    """It was the lock; any other failure is the test's."""
    if result.status == 0:
        return False
    assert result.status == 1 and "lock" in result.err, result
    return True


@pytest.fixture
def disk(tmp_path):
    return image_random(tmp_path / "disk", 1 << 20)


@pytest.mark.parametrize("peer, keeps_out", [
    (lambda disk: QemuIo(disk), {reads, writes, resizes}),
    (lambda disk: QemuIo(disk, "-r"), set()),
    (lambda disk: QemuNbd("-f", "raw", disk), {reads, writes, resizes}),
    (lambda disk: QemuNbd("-f", "raw", "-r", disk), {resizes}),
], ids=["qemu-io", "qemu-io -r", "qemu-nbd", "qemu-nbd -r"])
def test_s193_qemu_keeps_us_out(disk, peer, keeps_out):
    with peer(disk):
        for command in (reads, writes, resizes):
            result = command(disk)
            assert refused(result) == (command in keeps_out), result
            assert result.status == 0 or "--no-lock" in result.err
        assert reads(disk, "--no-lock").status == 0
    assert not refused(reads(disk)) and not refused(writes(disk)) and not refused(resizes(disk))


def test_s193_our_writer_keeps_qemu_out(tmp_path, disk):
    with Held(tmp_path, "copy", "-n", "fault:hold-read=FLAG:pattern:1M", disk):
        assert refused(qemu_converts(disk)) and refused(qemu_writes(disk))
        assert refused(reads(disk)) and refused(writes(disk))
    assert not refused(qemu_writes(disk)) and not refused(qemu_converts(disk))


def test_s193_our_reader_lets_qemu_read(tmp_path, disk):
    with Held(tmp_path, "compare", f"fault:hold-read=FLAG:{disk}", disk):
        assert not refused(qemu_converts(disk)) and refused(qemu_writes(disk))
        assert not refused(reads(disk)) and refused(writes(disk))
    assert not refused(qemu_writes(disk))


def test_no_lock_takes_none(tmp_path, disk):
    with Held(tmp_path, "compare", "--no-lock", f"fault:hold-read=FLAG:{disk}", disk):
        assert not refused(writes(disk)) and not refused(qemu_writes(disk))


def test_formats_are_not_overwritten_by_guess(tmp_path):
    disk = tmp_path / "disk.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", disk, "1M")
    before = disk.read_bytes()
    command = ["penstock", "copy", "-n", "--size-mismatch=ok", "pattern:64K", disk]
    result = run(*command, status=1)
    assert "qcow" in result.err and "-f raw" in result.err
    assert disk.read_bytes() == before
    run(*command, "-f", "raw")
    assert disk.read_bytes() != before
