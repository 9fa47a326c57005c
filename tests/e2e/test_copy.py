"""`penstock copy` as a user runs it: what arrives, what is said, what is left after a failure."""

import contextlib
import json
import os
import pty
import signal
import subprocess

import pytest
from harness import (PENSTOCK, Nbdkit, QemuNbd, compare_files, image_odd, image_random,
                     image_sparse, random_bytes, requires, run, start, wait_until)

MIB = 1 << 20


def copy(*args, **options):
    return run("penstock", "copy", *args, **options)


def copy_json(*args, **options):
    return json.loads(copy("--json", *args, **options).out)


def small(path, size, seed=1):
    path.write_bytes(random_bytes(size, seed))
    return path


@pytest.mark.threaded
def test_files_of_all_kinds(tmp_path):
    disks = [
        image_random(tmp_path / "random", 5 * MIB),
        image_sparse(tmp_path / "sparse", 20 * MIB),
        image_odd(tmp_path / "odd"),
        small(tmp_path / "empty", 0),
        small(tmp_path / "one", 1),
        small(tmp_path / "1000", 1000),
    ]
    target = tmp_path / "target"
    for disk in disks:
        for fresh in (True, False):
            if fresh:
                target.unlink(missing_ok=True)
            copy(disk, target)
            compare_files(disk, target)
            size = os.path.getsize(disk)
            small(target, size // 2 + 70000)  # the next one finds something else there
    copy(disks[1], target)
    assert os.stat(target).st_blocks * 512 < 3 * MIB
    copy("--allocated", disks[1], target)
    compare_files(disks[1], target)
    assert os.stat(target).st_blocks * 512 >= 20 * MIB


@pytest.mark.threaded
def test_servers_at_both_ends(tmp_path):
    source = image_odd(tmp_path / "source")
    size = os.path.getsize(source)
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * size)  # zeros have to be made there
    with Nbdkit("file", source) as a, Nbdkit("file", target) as b:
        said = copy_json(a.uri(), b.uri(), "--request-size=64K")
    compare_files(source, target)
    assert said["bytes"] == size == said["data_bytes"] + said["zero_bytes"]
    assert said["request_size"] == 65536 and said["depth"] > 1 and said["workers"] >= 1
    for end in ("source_sockets", "target_sockets"):
        assert said[end]["connections"] >= 1 and said[end]["send_buffer_granted"] > 0
    assert said["source_sockets"]["receives"] > 0
    out = tmp_path / "out"
    disk = image_sparse(tmp_path / "disk", 8 * MIB)
    out.write_bytes(b"\xff" * (8 * MIB))
    with QemuNbd("-r", "-f", "raw", disk) as a, QemuNbd("-f", "raw", out) as b:
        copy(a.uri(), b.uri(), "--workers=3", "--depth=5", "--connections=2")
    compare_files(disk, out)
    assert os.stat(out).st_blocks * 512 < 4 * MIB


def test_how_zeros_are_written(tmp_path):
    """--sparse, --target-is-zero and --pipe-size as the command takes them."""
    disk = tmp_path / "disk"
    disk.write_bytes(random_bytes(65536) + bytes(MIB) + random_bytes(65536, 2))
    out = tmp_path / "out"
    copy(disk, out)
    assert os.stat(out).st_blocks * 512 < MIB
    for option in ("--sparse=0", "-S0"):
        said = copy_json(option, disk, out)
        compare_files(disk, out)
        assert said["zero_bytes"] == 0 and os.stat(out).st_blocks * 512 >= MIB
    said = copy_json("--sparse=64K", disk, out)
    compare_files(disk, out)
    assert said["zero_bytes"] == MIB
    out.write_bytes(b"\xff" * os.path.getsize(disk))
    copy("--target-is-zero", "--no-create", disk, out)  # it is trusted, wrongly here
    got = out.read_bytes()
    assert got[:65536] == disk.read_bytes()[:65536]
    assert got[65536:65536 + MIB] == b"\xff" * MIB
    for size in ("64K", "1M", "auto"):
        with subprocess.Popen([PENSTOCK, "copy", f"--pipe-size={size}", disk, "-"],
                              stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as program:
            assert program.stdout.read() == disk.read_bytes()
            assert program.wait(60) == 0


def test_a_program_as_source(tmp_path):
    disk = small(tmp_path / "disk", 100000)
    copy("[", "nbdkit", "file", disk, "]", tmp_path / "out")
    compare_files(disk, tmp_path / "out")


@contextlib.contextmanager
def loop_device(image):
    """A block device of an image; skips the test where there is none to be had."""
    got = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, check=False)
    if got.returncode != 0:
        pytest.skip("skipped: no loop device")
    device = got.stdout.decode().strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_block_device(tmp_path):
    requires("losetup")
    image = tmp_path / "image"
    image.write_bytes(b"\xff" * (4 * MIB))
    disk = image_sparse(tmp_path / "disk", 4 * MIB)
    with loop_device(image) as device:
        copy(disk, device)
        copy(device, tmp_path / "out")
        compare_files(disk, tmp_path / "out")
        copy(disk, device, "--cache=none")
        assert "size-mismatch" in copy("pattern:1M", device, status=1).err
        assert "too small" in copy("pattern:5M", device, status=1).err
        assert "the same" in copy(device, device, status=1).err
    compare_files(disk, image)


def test_two_tib_with_one_byte(tmp_path):
    disk, target = tmp_path / "disk", tmp_path / "target"
    at = (1 << 40) + 12345
    with open(disk, "wb") as file:
        try:
            file.truncate(2 << 40)
        except OSError:
            pytest.skip("skipped: this file system has no large files")
        file.seek(at)
        file.write(b"x")
    said = copy_json(disk, target)
    assert said["bytes"] == 2 << 40
    assert said["data_bytes"] <= 65536
    with open(target, "rb") as file:
        file.seek(at)
        assert file.read(1) == b"x"
    assert os.path.getsize(target) == 2 << 40
    with Nbdkit("file", disk) as server:
        assert copy_json(server.uri(), "null:")["data_bytes"] <= 65536


def test_onto_itself(tmp_path):
    disk = image_random(tmp_path / "disk", MIB)
    before = disk.read_bytes()
    link, other = tmp_path / "link", tmp_path / "other"
    os.symlink(disk, link)
    os.link(disk, other)
    with open(disk, "r+b") as file:
        fd = file.fileno()
        for source, target in [
                (disk, disk), (disk, link), (other, disk), (f"file:{disk}", other),
                (f"slice:0+64K:{disk}", disk), (disk, f"slice:512K:{link}"), (disk, f"fd:{fd}"),
                (f"fd:{fd}", other)]:
            err = copy(source, target, status=1, pass_fds=[fd]).err
            assert "the same" in err
        err = copy("-", disk, status=1, stdin=file).err
        assert "the same" in err
    assert disk.read_bytes() == before


def test_pipes(tmp_path):
    disk = image_odd(tmp_path / "disk")
    out = tmp_path / "out"
    for source, size in ((disk, os.path.getsize(disk)), (small(tmp_path / "e", 0), 0)):
        with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as cat:
            said = copy_json("-", out, stdin=cat.stdout)
        compare_files(source, out)
        assert said["bytes"] == size
        # to a pipe, and through one between two copies
        with open(out, "wb") as file:
            through = start("cat", stdin=subprocess.PIPE, stdout=file)
            copy(source, "-", stdout=through.popen.stdin)
            through.popen.stdin.close()
            assert through.wait() == 0
        compare_files(source, out)
    # from one stream to another
    with open(disk, "rb") as a, open(out, "wb") as b:
        copy("-", f"fd:{b.fileno()}", stdin=a, pass_fds=[b.fileno()])
    compare_files(disk, out)


def test_pipe_to_a_server(tmp_path):
    disk = small(tmp_path / "disk", 3 * MIB)
    target = small(tmp_path / "target", 3 * MIB, seed=2)
    with QemuNbd("-f", "raw", target) as server:
        with open(disk, "rb") as file:
            copy("-", server.uri(), stdin=file)
        compare_files(disk, target)
        err = copy("-", server.uri(), stdin=b"short", status=1).err
        assert "size-mismatch" in err
        copy("-", server.uri(), "--size-mismatch=ok", stdin=b"short")
    assert target.read_bytes()[:10] == b"short" + disk.read_bytes()[5:10]


def test_reader_goes_away():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        err = copy("pattern:64M", f"fd:{writer}", status=1, pass_fds=[writer]).err
    finally:
        os.close(writer)
    assert "the reader of the stream has gone" in err and f"fd:{writer}" in err


@contextlib.contextmanager
def small_tmpfs(path, size):
    """A file system that is soon full; skips the test where none can be mounted."""
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "penstock-test", path],
                      capture_output=True, check=False).returncode != 0:
        pytest.skip("skipped: no right to mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_no_space(tmp_path):
    with small_tmpfs(tmp_path / "full", "1M") as full:
        err = copy("pattern:8M", full / "disk", status=1).err
        assert "No space left on device" in err
        assert "removed" in err
        assert os.listdir(full) == []
        target = full / "there"
        target.write_bytes(b"")
        err = copy("pattern:8M", target, status=1).err
        assert "incomplete" in err and target.exists()
    with open("/dev/full", "wb") as file:
        err = copy("pattern:8M", "-", stdout=file, status=1).err
    assert "No space left on device" in err


@pytest.mark.threaded
def test_errors_at_either_side(tmp_path):
    disk = image_random(tmp_path / "disk", 4 * MIB)
    fault = f"fault:read-error=EIO@3145728+4096:{disk}"
    out = tmp_path / "out"
    err = copy(fault, out, status=1).err
    assert fault in err and "Input/output error" in err
    assert "3145728" in err
    assert not out.exists() and "removed" in err
    there = small(tmp_path / "there", 4 * MIB)
    target = f"fault:write-error=ENOSPC@2M+1:{there}"
    err = copy(disk, target, status=1).err
    assert target in err and "No space left on device" in err and "incomplete" in err
    assert "2097152" in err
    err = copy(disk, f"fault:flush-error=EIO:{there}", status=1).err
    assert "flush" in err
    copy(disk, f"fault:flush-error=EIO:{there}", "--flush=no")
    compare_files(disk, there)


def test_refusals(tmp_path):
    disk = image_random(tmp_path / "disk", 2 * MIB)
    there = small(tmp_path / "there", MIB)
    before = there.read_bytes()
    assert "too small" in copy(disk, there, "--no-create", status=1).err
    assert "too small" in copy(disk, there, "--no-create", "--size-mismatch=ok", status=1).err
    assert "size-mismatch=ok" in copy("pattern:4K", there, "-n", status=1).err
    assert "No such file" in copy(disk, tmp_path / "new", "-n", status=1).err
    assert not (tmp_path / "new").exists()
    assert there.read_bytes() == before
    copy("pattern:4K", there, "-n", "--size-mismatch=ok")
    assert there.read_bytes()[4096:] == before[4096:]
    with QemuNbd("-r", "-f", "raw", there) as server:
        err = copy("null:1M", server.uri(), status=1).err
        assert server.uri() in err
    out = copy(tmp_path / "nothing", tmp_path / "new", status=1)
    assert "nothing" in out.err and not (tmp_path / "new").exists()
    copy(disk, status=2)
    copy(disk, "-", "--json", status=2)
    copy(disk, tmp_path / "new", "--request-size=1", status=2)
    copy(disk, tmp_path / "new", "--progress=999", status=2)
    assert not (tmp_path / "new").exists()


@pytest.mark.threaded
def test_server_dies(tmp_path):
    out = tmp_path / "out"
    gate = tmp_path / "gate"
    with Nbdkit("--filter=delay", "pattern", "1G", "delay-read=100ms") as server:
        uri = server.uri()
        program = start(PENSTOCK, "copy", uri, out, "--request-size=4K", "--depth=1", "-w1",
                        stdin=subprocess.DEVNULL)
        wait_until(lambda: out.exists() and os.stat(out).st_blocks > 0, what="the first write")
        server.kill()
        assert program.wait() == 1
    assert uri in program.err().decode()
    assert not out.exists() and not gate.exists()


@pytest.mark.threaded
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(tmp_path, number):
    out = tmp_path / "out"
    program = start(PENSTOCK, "copy", "fault:hold-read@1M+1G:pattern:1G", out)
    wait_until(lambda: out.exists() and os.stat(out).st_blocks >= 2048, what="a MiB is there")
    program.kill(number)
    assert program.wait() == 1
    err = program.err().decode()
    assert "interrupted" in err and "removed" in err
    assert not out.exists()


@pytest.mark.threaded
def test_signal_while_nobody_answers(tmp_path):
    """A peer that hangs, and a pipe that brings nothing, don't keep us."""
    disk = image_random(tmp_path / "disk", 8 * MIB)
    out = tmp_path / "out"
    with QemuNbd("-r", "-f", "raw", disk) as server:
        program = start(PENSTOCK, "copy", server.uri(), out, "--rate=64K")
        wait_until(lambda: out.exists() and os.stat(out).st_blocks, what="the first write")
        os.kill(server.pid, signal.SIGSTOP)
        program.kill(signal.SIGINT)
        assert program.wait() == 1
        os.kill(server.pid, signal.SIGCONT)
    assert not out.exists()
    reader, writer = os.pipe()
    with open(reader, "rb") as stdin, open(writer, "wb"):
        program = start(PENSTOCK, "copy", "-", out, stdin=stdin)
        wait_until(out.exists, what="the target")
        program.kill(signal.SIGTERM)
        assert program.wait() == 1
    assert not out.exists()
    # a reader that reads nothing
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb") as stdout:
        progress, progress_writer = os.pipe()
        program = start(PENSTOCK, "copy", "pattern:16M", "-", f"--progress={progress_writer}",
                        stdout=stdout, pass_fds=[progress_writer])
        os.close(progress_writer)
        with open(progress, "rb") as lines:
            assert lines.readline()  # it has begun
            program.kill(signal.SIGTERM)
            assert program.wait() == 1
    assert b"interrupted" in program.err()


def test_rate_and_progress(tmp_path):
    reader, writer = os.pipe()
    disk = small(tmp_path / "disk", 300000)
    try:
        copy(disk, tmp_path / "out", "--rate=1M", "--request-size=4K", f"--progress={writer}",
             pass_fds=[writer])
    finally:
        os.close(writer)
    with open(reader, encoding="ascii") as file:
        lines = file.read().split()
    assert lines[-1] == "100/100"
    numbers = [int(line.split("/")[0]) for line in lines]
    assert numbers == sorted(set(numbers))
    compare_files(disk, tmp_path / "out")


def test_no_hundred_after_a_failure(tmp_path):
    reader, writer = os.pipe()
    try:
        copy("fault:flush-error=EIO:pattern:1M", tmp_path / "out", status=0)
        copy("pattern:1M", "fault:flush-error=EIO:memory:1M", f"--progress={writer}", status=1,
             pass_fds=[writer])
    finally:
        os.close(writer)
    with open(reader, encoding="ascii") as file:
        assert "100/100" not in file.read()


def test_bar_on_a_terminal():
    master, slave = pty.openpty()
    try:
        with subprocess.Popen([PENSTOCK, "copy", "pattern:1M", "null:"], stderr=slave,
                              stdin=subprocess.DEVNULL) as program:
            assert program.wait(60) == 0
        os.set_blocking(master, False)
        shown = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                shown += os.read(master, 65536)
    finally:
        os.close(master)
        os.close(slave)
    assert b"100" in shown and b"copy" in shown


def test_files_without_a_size(tmp_path):
    """A file of /proc has contents and no size: not an empty disk."""
    out = tmp_path / "out"
    assert "no size" in copy("/proc/version", out, status=1).err
    assert not out.exists()
    with open("/proc/version", "rb") as file:
        copy("-", out, stdin=file)
    assert out.read_bytes().startswith(b"Linux")


def test_no_descriptors_for_the_workers(tmp_path):
    """Neither a leak (of which only ASan would tell), nor a target that looks done."""
    disk = small(tmp_path / "disk", 300000)
    result = run("bash", "-c", 'ulimit -n 40; exec "$@"', "bash", PENSTOCK, "copy",
                 "--workers=64", "--request-size=4K", disk, tmp_path / "out", status=1)
    assert "can't start 64 workers" in result.err, result.err
    assert os.listdir(tmp_path) == ["disk"]
