"""
penstock save and restore, and the drop-in libvirt_iohelper: every byte both ways, and the right
outcome for every end that misbehaves.
"""

import array
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
import termios

import pytest
from harness import PENSTOCK, random_bytes, requires, run, start, wait_until

MIB = 1 << 20
SIZES = [0, 1, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB + 777]
MODES = {
    "plain": [],
    "direct": ["--direct"],
    "sparse": ["--sparse"],
    "digest": ["--digest"],
    "gzip": ["--compress", "gzip"],
    "zstd": ["--compress=zstd:3", "--digest"],
    "lz4-direct": ["--compress=lz4", "--direct"],
    "in-place": ["--in-place"],
    "preallocate": ["--preallocate", "8M", "--direct"],
}


def content(size):
    """Data, zeros and text in turn, so that each mode has something to do."""
    random = random_bytes(size // 3 + 1, seed=size + 1)
    zeros = bytes(size // 3)
    text = b"all work and no play " * (size // 60 + 1)
    return (random + zeros + text)[:size]


def feed(data, *argv, status=0, env=None, cwd=None):
    """Runs penstock with data on its standard input, through a pipe."""
    done = subprocess.run([PENSTOCK, *argv], input=data, capture_output=True, timeout=600,
                          env={**os.environ, **(env or {})}, cwd=cwd, check=False)
    assert done.returncode == status, done
    return done


def take(path, *options):
    """What penstock restore gives through a pipe."""
    return feed(b"", "restore", *options, os.fspath(path)).stdout


@pytest.mark.parametrize("mode", MODES)
def test_every_byte_both_ways(tmp_path, mode):
    for size in SIZES:
        path = tmp_path / str(size)
        data = content(size)
        path.write_bytes(b"old and longer than some" * 400000 if size == 513 else b"old")
        feed(data, "save", *MODES[mode], os.fspath(path))
        assert take(path) == data
        assert take(path, "--direct") == data
        if "--digest" in MODES[mode]:
            assert take(path, "--digest") == data
        if "--compress" not in " ".join(MODES[mode]):
            assert path.read_bytes() == data
        with open(tmp_path / "out", "wb") as out:  # a file as the reader
            subprocess.run([PENSTOCK, "restore", path], stdout=out, check=True)
        assert (tmp_path / "out").read_bytes() == data
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("codec, tool", [("zstd", "zstd"), ("gzip", "gzip"), ("lz4", "lz4")])
def test_ordinary_tools_read_it(tmp_path, codec, tool):
    requires(tool)
    data = content(3 * MIB + 777)
    feed(data, "save", "--compress", codec, "--digest", os.fspath(tmp_path / "f"))
    with open(tmp_path / "f", "rb") as file:
        out = subprocess.run([tool, "-dc"], stdin=file, capture_output=True, check=True).stdout
    assert out == data


def test_sparse_leaves_holes(tmp_path):
    data = bytes(16 * MIB) + b"x"
    done = feed(data, "save", "--sparse", "--json", os.fspath(tmp_path / "f"))
    assert json.loads(done.stdout)["zero_bytes"] == 16 * MIB
    assert os.stat(tmp_path / "f").st_blocks * 512 < MIB
    assert (tmp_path / "f").read_bytes() == data


def test_sparse_over_old_data_in_place(tmp_path):
    (tmp_path / "f").write_bytes(b"old" * MIB)
    data = bytes(2 * MIB) + b"x"
    feed(data, "save", "--sparse", "--in-place", os.fspath(tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data


def test_offset_keeps_the_header(tmp_path):
    header = b"H" * 67130
    data = content(3 * MIB + 777)
    for options in ([], ["--direct"]):
        (tmp_path / "f").write_bytes(header + b"old" * (2 * MIB))
        feed(data, "save", "--offset", str(len(header)), *options, os.fspath(tmp_path / "f"))
        assert (tmp_path / "f").read_bytes() == header + data
        assert take(tmp_path / "f", "--offset", str(len(header)), *options) == data


def test_summary(tmp_path):
    data = content(MIB + 1)
    said = json.loads(feed(data, "save", "--json", "--digest", os.fspath(tmp_path / "f")).stdout)
    assert said["bytes"] == said["stored_bytes"] == len(data)
    assert said["pipe_granted"] >= 65536
    blocks = [data[i:i + 65536] for i in range(0, len(data), 65536)]
    outer = b"".join(hashlib.sha256(block).digest() for block in blocks)
    outer += len(data).to_bytes(8, "little")
    assert said["blkhash_sha256"] == hashlib.sha256(outer).hexdigest()
    assert (tmp_path / "f.blkhash").read_text() == said["blkhash_sha256"] + "  f\n"


def test_keeps_the_mode_and_follows_links(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    os.chmod(tmp_path / "real", 0o640)
    os.symlink("real", tmp_path / "link")
    feed(b"new", "save", os.fspath(tmp_path / "link"))
    assert os.path.islink(tmp_path / "link")
    assert (tmp_path / "real").read_bytes() == b"new"
    assert stat.S_IMODE(os.stat(tmp_path / "real").st_mode) == 0o640
    feed(b"new", "save", os.fspath(tmp_path / "fresh"))
    assert stat.S_IMODE(os.stat(tmp_path / "fresh").st_mode) == 0o600


def test_a_digest_that_differs(tmp_path):
    feed(content(MIB), "save", "--digest", os.fspath(tmp_path / "f"))
    with open(tmp_path / "f", "r+b") as file:
        file.seek(12345)
        file.write(b"\xff\x00\xff")
    assert b"digest" in feed(b"", "restore", "--digest", os.fspath(tmp_path / "f"), status=1).stderr
    (tmp_path / "plain").write_bytes(b"plain")
    feed(b"", "restore", "--digest", os.fspath(tmp_path / "plain"), status=1)


@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip"])
def test_damage_is_found(tmp_path, codec):
    path = tmp_path / "f"
    feed(content(3 * MIB), "save", "--compress", codec, "--digest", os.fspath(path))
    whole = path.read_bytes()
    for cut in (1, 4096, len(whole) // 2, len(whole) - 4200):
        path.write_bytes(whole[:-cut])
        assert feed(b"", "restore", os.fspath(path), status=1).stderr
    for at in range(4096 + 40, len(whole), len(whole) // 7):
        broken = bytearray(whole)
        broken[at] ^= 0x41
        path.write_bytes(broken)
        done = subprocess.run([PENSTOCK, "restore", path], capture_output=True, check=False)
        assert done.returncode == 1 or done.stdout == content(3 * MIB)  # padding may be changed


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_damage_in_the_head_does_not_make_it_plain(tmp_path, codec):
    path = tmp_path / "f"
    feed(content(5000), "save", "--compress", codec, os.fspath(path))
    whole = path.read_bytes()
    version = whole.index(b"PNSTKSV1") + 8
    newer = bytearray(whole)
    newer[version] ^= 2
    for data in (newer, whole[:-1], whole[:4096], whole[:4095], whole[:100], whole[:version],
                 whole[:version - 4]):
        path.write_bytes(data)
        assert feed(b"", "restore", os.fspath(path), status=1).stdout == b""
        assert take(path, "--as-is") == data
    path.write_bytes(whole)
    assert take(path) == content(5000)


def test_full_disk(tmp_path):
    fault = f"fault:write-error=ENOSPC@2M+1M:{tmp_path / 'f'}"
    (tmp_path / "f").write_bytes(bytes(8 * MIB))
    done = feed(content(8 * MIB), "save", fault, status=1)
    assert b"No space left on device" in done.stderr
    done = feed(content(MIB), "save", "/dev/full", status=1)
    assert b"No space left on device" in done.stderr


def test_a_small_file_system(tmp_path):
    folder = tmp_path / "mnt"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=False)
    if done.returncode != 0:
        pytest.skip("skipped: no right to mount")
    try:
        (folder / "f").write_bytes(b"old")
        for options in ([], ["--direct"], ["--compress=gzip"]):
            done = feed(random_bytes(4 * MIB), "save", *options, os.fspath(folder / "f"), status=1)
            assert b"No space left on device" in done.stderr
            assert os.listdir(folder) == ["f"]
            assert (folder / "f").read_bytes() == b"old"
    finally:
        subprocess.run(["umount", folder], check=True)


def test_devices_and_pipes(tmp_path):
    feed(content(MIB + 1), "save", "/dev/null")
    os.mkfifo(tmp_path / "fifo")
    reader = start("cat", tmp_path / "fifo")
    feed(content(3 * MIB + 777), "save", os.fspath(tmp_path / "fifo"))
    assert reader.wait() == 0
    assert reader.out() == content(3 * MIB + 777)


def test_wrong_places(tmp_path):
    feed(b"x", "save", os.fspath(tmp_path), status=1)
    feed(b"x", "save", os.fspath(tmp_path / "no" / "f"), status=1)
    feed(b"", "restore", os.fspath(tmp_path / "no"), status=1)
    feed(b"", "restore", os.fspath(tmp_path), status=1)
    feed(b"x", "save", "--compress=zstd:99", os.fspath(tmp_path / "f"), status=2)
    feed(b"x", "save", "--compress=rar", os.fspath(tmp_path / "f"), status=2)
    feed(b"x", "save", "--fd=77", os.fspath(tmp_path / "f"), status=1)
    assert os.listdir(tmp_path) == []


def test_a_reader_that_goes(tmp_path):
    (tmp_path / "f").write_bytes(content(8 * MIB))
    for options in ([], ["--direct"]):
        r, w = os.pipe()
        program = start(PENSTOCK, "restore", *options, tmp_path / "f", stdout=w)
        os.close(w)
        os.read(r, 1)
        os.close(r)
        assert program.wait() == 1
        assert b"Broken pipe" in program.err()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_in_the_middle(tmp_path, number):
    r, w = os.pipe()
    program = start(PENSTOCK, "save", tmp_path / "f", stdin=r)
    os.close(r)
    os.write(w, content(60000))
    wait_until(lambda: os.listdir(tmp_path), what="the temporary")
    program.kill(number)
    assert program.wait() == 1
    assert os.listdir(tmp_path) == []
    with pytest.raises(BrokenPipeError):
        os.write(w, b"x")
    os.close(w)


def test_non_blocking_ends_stay_so(tmp_path):
    r, w = os.pipe()
    for fd in (r, w):
        os.set_blocking(fd, False)
    program = start(PENSTOCK, "save", tmp_path / "f", stdin=r)
    data = content(3 * MIB + 777)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(w, view):]
        except BlockingIOError:
            assert program.running()
    os.close(w)
    assert program.wait() == 0
    assert not os.get_blocking(r)
    os.close(r)
    assert (tmp_path / "f").read_bytes() == data


def test_a_socket_as_the_producer(tmp_path):
    import socket
    left, right = socket.socketpair()
    program = start(PENSTOCK, "save", "--fd=0", tmp_path / "f", stdin=right.fileno())
    right.close()
    left.sendall(content(MIB + 1))
    left.close()
    assert program.wait() == 0
    assert (tmp_path / "f").read_bytes() == content(MIB + 1)


def test_other_endpoints(short_tmp):
    from harness import Server
    disk = os.path.join(short_tmp, "disk")
    data = content(2 * MIB)
    with open(disk, "wb") as file:
        file.truncate(4 * MIB)
    with Server(disk) as server:
        feed(data, "save", server.uri())
        got = feed(b"", "restore", server.uri()).stdout
    assert got[:len(data)] == data and len(got) == 4 * MIB


def shell(line, *argv, status=0):
    """For what only a shell can say; "$@" is penstock and argv."""
    return run("sh", "-c", line, "sh", PENSTOCK, *argv, status=status, seconds=200)


@pytest.mark.slow
@pytest.mark.limit(300)
def test_five_gibibytes(tmp_path):
    path = tmp_path / "f"
    size = 5 << 30
    line = f'(head -c {size} /dev/zero; printf end) | "$@"'
    said = json.loads(shell(line, "save", "--sparse", "--json", path).out)
    assert said["bytes"] == size + 3
    assert path.stat().st_size == size + 3
    assert path.stat().st_blocks * 512 < MIB
    assert take(path, "--offset", str(size)) == b"end"


def held_by_pipe(fd):
    """Bytes that are written and not yet read."""
    room = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, room)
    return room[0]


@pytest.mark.parametrize("options", [[], ["--direct"], ["--compress=zstd", "--digest"]])
def test_a_slow_producer(tmp_path, options):
    """Never more than a crumb in the pipe: no block is ever read at once."""
    data = content(5000)
    r, w = os.pipe()
    program = start(PENSTOCK, "save", *options, tmp_path / "f", stdin=r)
    for at in range(0, len(data), 777):
        os.write(w, data[at:at + 777])
        wait_until(lambda: held_by_pipe(r) == 0, what="the crumb's end")
    for fd in (r, w):
        os.close(fd)
    assert program.wait() == 0
    assert take(tmp_path / "f") == data


@pytest.mark.parametrize("old", [None, b"old"])
def test_killed_in_the_middle(tmp_path, old):
    """kill -9: FILE is what it was. What is left is a temporary whose name begins with a dot."""
    path = tmp_path / "f"
    if old:
        path.write_bytes(old)
    r, w = os.pipe()
    program = start(PENSTOCK, "save", path, stdin=r)
    os.close(r)
    data = content(3 * MIB)
    while data:  # the pipe's size at most is unread at the end of this
        data = data[os.write(w, data):]
    program.kill()
    assert program.wait() == -signal.SIGKILL
    os.close(w)
    assert [name for name in os.listdir(tmp_path) if name[0] != "."] == (["f"] if old else [])
    assert old is None or path.read_bytes() == old
    feed(b"new", "save", os.fspath(path))  # nor does the temporary stand in the way
    assert path.read_bytes() == b"new"


def test_block_device(tmp_path):
    requires("losetup")
    image = tmp_path / "image"
    image.write_bytes(b"\xff" * (8 * MIB))
    got = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, check=False)
    if got.returncode != 0:
        pytest.skip("skipped: no loop device")
    device = got.stdout.decode().strip()
    data = content(3 * MIB + 777)
    try:
        for options in ([], ["--direct"], ["--sparse"]):
            feed(data, "save", *options, device)
            assert take(device)[:len(data)] == data
        done = feed(random_bytes(9 * MIB), "save", device, status=1)
        assert b"No space left on device" in done.stderr
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextlib.contextmanager
def mounted(folder, *options):
    folder.mkdir()
    done = subprocess.run(["mount", *options, "none", folder], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("skipped: no right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_file_system_without_direct_io(tmp_path):
    data = content(3 * MIB + 777)
    with mounted(tmp_path / "mnt", "-t", "ramfs") as folder:
        done = feed(data, "save", "--direct", os.fspath(folder / "f"))
        assert b"plain writes instead" in done.stderr
        assert take(folder / "f", "--direct") == data


def test_a_read_only_place(tmp_path):
    with mounted(tmp_path / "mnt", "-t", "tmpfs", "-o", "ro") as folder:
        done = feed(b"x", "save", os.fspath(folder / "f"), status=1)
        assert b"Read-only file system" in done.stderr
    (tmp_path / "f").write_bytes(b"old")
    os.chmod(tmp_path / "f", 0o400)
    assert take(tmp_path / "f") == b"old"


def test_closed_ends(tmp_path, helper):
    """An input that is not there is not an empty one."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    assert "Bad file descriptor" in shell('"$@" <&-', "save", path, status=1).err
    assert "Bad file descriptor" in shell('"$@" >&-', "restore", path, status=1).err
    assert path.read_bytes() == b"old"
    for line in ('"$1" NAME 1 <&-', '"$1" NAME 1 >&-', '"$1" NAME 0 <&-'):
        done = run("sh", "-c", line, "sh", helper, status=1, stdin=b"x")
        assert "failure with NAME: " in done.err
    assert sorted(os.listdir(tmp_path)) == ["f", "libvirt_iohelper"]


# ---- libvirt_iohelper ----

@pytest.fixture
def helper(tmp_path):
    path = tmp_path / "libvirt_iohelper"
    os.symlink(PENSTOCK, path)
    return os.fspath(path)


def run_helper(helper, name, fd, stdin, stdout):
    return subprocess.Popen([helper, name, str(fd)], stdin=stdin, stdout=stdout,
                            stderr=subprocess.PIPE, env={"LIBVIRT_LOG_OUTPUTS": "1:stderr"})


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
@pytest.mark.parametrize("size", [0, 1, 513, MIB, 3 * MIB + 777])
def test_iohelper(tmp_path, helper, flags, size):
    data = content(size)
    out = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT | flags, 0o600)
    child = run_helper(helper, "NAME", 1, subprocess.PIPE, out)
    os.close(out)
    _, err = child.communicate(data)
    assert (child.returncode, err) == (0, b"")
    assert (tmp_path / "f").read_bytes() == data
    source = os.open(tmp_path / "f", os.O_RDONLY | flags)
    child = run_helper(helper, "NAME", 0, source, subprocess.PIPE)
    os.close(source)
    got, err = child.communicate()
    assert (child.returncode, err) == (0, b"")
    assert got == data


def test_iohelper_messages(tmp_path, helper):
    with open("/dev/full", "wb") as full:
        child = run_helper(helper, "/var/lib/vm", 1, subprocess.PIPE, full)
    _, err = child.communicate(content(MIB))
    assert child.returncode == 1
    assert err == (helper + ": failure with /var/lib/vm: Unable to write /var/lib/vm: "
                   "No space left on device").encode()
    done = subprocess.run([helper, "only"], capture_output=True, check=False)
    assert (done.returncode, b"syntax" in done.stderr) == (1, True)


def test_no_digest_beside_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("skipped: no right to make devices")
    feed(content(MIB), "save", "--digest", os.fspath(device))
    assert os.listdir(tmp_path) == ["null"]
    assert stat.S_ISCHR(os.stat(device).st_mode)
