"""penstock serve: starting, being told to stop, what is left behind (nothing)."""

import contextlib
import os
import signal
import socket

import nbd
import pytest

from harness import PENSTOCK, Failed, Server, requires, run, start, wait_until
from harness.process import children_marked

MIB = 1 << 20
HELD = 65536


def connect(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    return handle


def held_read(client, buffer):
    """A read that the server has, and cannot answer: a later one was answered."""
    cookie = client.aio_pread(buffer, HELD)
    client.pread(512, 0)
    return cookie


@contextlib.contextmanager
def notify_socket(folder):
    """What systemd listens on; the address and a function that takes the next message."""
    path = os.path.join(folder, "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(60)
        yield path, lambda: sock.recv(4096).decode()
    os.unlink(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(short_tmp, number):
    pid_file = os.path.join(short_tmp, "pid")
    with notify_socket(short_tmp) as (path, message):
        server = Server("--pid-file", pid_file, "null:1M", env={"NOTIFY_SOCKET": path})
        server.start()
        assert message() == "READY=1"
        with open(pid_file, encoding="ascii") as file:
            assert file.read() == f"{server.pid}\n"
        client = connect(server.uri())
        assert client.get_size() == MIB
        server.program.kill(number)
        assert message() == "STOPPING=1"
        server.wait(0)
    assert os.listdir(short_tmp) == []


def test_a_request_in_flight_is_answered_before_the_end(short_tmp):
    gate = os.path.join(short_tmp, "gate")
    with notify_socket(short_tmp) as (path, message):
        server = Server("-r", f"fault:hold-read={gate}@{HELD}+1:pattern:1M",
                        env={"NOTIFY_SOCKET": path})
        server.start()
        assert message() == "READY=1"
        client = connect(server.uri())
        buffer = nbd.Buffer(4096)
        cookie = held_read(client, buffer)
        server.program.kill(signal.SIGTERM)
        assert message() == "STOPPING=1"
        with open(gate, "wb"):
            pass
        while not client.aio_command_completed(cookie):
            client.poll(1000)
        assert any(buffer.to_bytearray())
        server.wait(0)


def test_a_second_signal_ends_it_at_once(short_tmp, tmp_path):
    pid_file = os.path.join(short_tmp, "pid")
    server = Server("--pid-file", pid_file, f"fault:hold-read={tmp_path}/never@{HELD}+1:null:1M")
    server.start()
    client = connect(server.uri())
    held_read(client, nbd.Buffer(4096))

    def gone():
        # Signals that come close together count as one.
        server.program.kill(signal.SIGTERM)
        return not server.program.running()

    wait_until(gone)
    assert "second signal" in server.err()
    server.wait(1)
    assert os.listdir(short_tmp) == []


def test_a_second_signal_leaves_no_program_behind(short_tmp):
    requires("nbdkit")
    server = Server("--pid-file", short_tmp + "/pid", "[", "nbdkit", "--filter=delay", "memory",
                    "1M", "rdelay=60", "]", env={"TMPDIR": short_tmp})
    server.start()
    client = connect(server.uri())
    client.aio_pread(nbd.Buffer(4096), 0)
    while client.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
        client.poll(1000)
    assert len(os.listdir(short_tmp)) == 2

    def gone():
        server.program.kill(signal.SIGTERM)
        return not server.program.running()

    wait_until(gone)
    assert os.listdir(short_tmp) == []
    server.kill()
    wait_until(lambda: not children_marked("PENSTOCK_TEST_SERVER", server._mark))


def test_s187_a_signal_while_it_starts(short_tmp):
    """The disk's server accepts, and never says a word."""
    dead = os.path.join(short_tmp, "dead")
    for options in ([], ["--run", "true"]):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(dead)
            sock.listen()
            program = start(PENSTOCK, "serve", "-U", short_tmp + "/s", "--pid-file",
                            short_tmp + "/pid", *options, f"nbd+unix:///?socket={dead}")
            sock.settimeout(60)
            client = sock.accept()[0]
            program.kill(signal.SIGTERM)
            assert program.wait() == (1 if options else 0), program.describe()
            client.close()
        os.unlink(dead)
        assert os.listdir(short_tmp) == []


def test_s188_sockets_that_are_in_the_way(short_tmp):
    path = os.path.join(short_tmp, "s")

    # Left by a dead server: replaced.
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
    with Server("-U", path, "null:1M", socket=False):
        assert connect(f"nbd+unix:///?socket={path}").get_size() == MIB

        # Alive: refused, and it goes on.
        result = run("penstock", "serve", "-U", path, "null:1M", status=1)
        assert path in result.err
        assert connect(f"nbd+unix:///?socket={path}").get_size() == MIB
    assert os.listdir(short_tmp) == []

    # A file, a folder: refused and left alone.
    with open(path, "wb") as file:
        file.write(b"precious")
    assert path in run("penstock", "serve", "-U", path, "null:1M", status=1).err
    with open(path, "rb") as file:
        assert file.read() == b"precious"
    os.unlink(path)
    os.mkdir(path)
    run("penstock", "serve", "-U", path, "null:1M", status=1)
    os.rmdir(path)

    # Nowhere to put it. /proc takes no files, not even root's.
    for folder in ("/nonexistent", "/proc"):
        result = run("penstock", "serve", "-U", folder + "/s", "null:1M", status=1)
        assert folder + "/s" in result.err


def test_a_second_address_that_is_taken(short_tmp):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("penstock", "serve", "-U", short_tmp + "/s", "--pid-file",
                     short_tmp + "/pid", "--tcp", address, "null:1M", status=1)
        assert address in result.err and os.listdir(short_tmp) == []


@pytest.mark.threaded
def test_what_was_acknowledged_before_the_end_is_in_the_file(tmp_path):
    """Clients that write all the time while the server is told to stop."""
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(4 * MIB)
    server = Server("--workers=2", disk)
    server.start()
    clients = [connect(server.uri()) for _ in range(4)]
    acknowledged = set()
    for round_ in range(MIB // 4096):
        if round_ == 50:
            server.program.kill(signal.SIGTERM)
        for number, client in enumerate(clients):
            offset = number * MIB + round_ * 4096
            try:
                client.pwrite(block_of(offset), offset)
            except nbd.Error:
                continue
            acknowledged.add(offset)
        if all(client.aio_is_dead() or client.aio_is_closed() for client in clients):
            break
    server.wait(0)
    data = disk.read_bytes()
    assert len(acknowledged) >= 200
    assert not [offset for offset in acknowledged
                if data[offset:offset + 4096] != block_of(offset)]


def block_of(offset):
    return offset.to_bytes(8, "big") * 512


def test_s186_descriptors_run_out_and_come_back(short_tmp):
    """More clients than it has descriptors for: they wait, and nobody is hurt."""
    path = os.path.join(short_tmp, "s")
    pid_file = os.path.join(short_tmp, "pid")
    program = start("bash", "-c", 'ulimit -n 48; exec "$@"', "bash", PENSTOCK, "serve",
                    "--workers=2", "-U", path, "--pid-file", pid_file, "null:1M")
    wait_until(lambda: os.path.exists(pid_file) or not program.running())
    first = connect(f"nbd+unix:///?socket={path}")
    with contextlib.ExitStack() as crowd:
        for _ in range(80):
            crowd.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        assert len(first.pread(4096, 0)) == 4096
    assert connect(f"nbd+unix:///?socket={path}").get_size() == MIB
    program.kill(signal.SIGTERM)
    assert program.wait() == 0, program.describe()
    assert os.listdir(short_tmp) == []


def test_s188_a_socket_that_was_replaced_is_not_removed(short_tmp):
    path = os.path.join(short_tmp, "s")
    server = Server("-U", path, "null:1M", socket=False)
    server.start()
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        server.stop()
        assert os.path.exists(path)


def test_pid_files_that_can_not_be_written(short_tmp):
    path = os.path.join(short_tmp, "s")
    for name in ("/nonexistent/pid", "/proc/pid", "/dev/full", short_tmp):
        result = run("penstock", "serve", "-U", path, "--pid-file", name, "null:1M", status=1)
        assert name in result.err
        assert os.listdir(short_tmp) == [], name


def test_a_pid_file_on_a_full_disk(short_tmp):
    """A limit on file sizes fails a write as a full disk does; of the log as well."""
    # TSan's own files at its start would run into the limit and be its end.
    ignore = "trap '' XFSZ; " if "TSAN_OPTIONS" in os.environ else ""
    run("bash", "-c", ignore + 'ulimit -f 0; exec "$@"', "bash", PENSTOCK, "serve", "-U",
        short_tmp + "/s", "--pid-file", short_tmp + "/pid", "--run", f"echo >{short_tmp}/ran",
        "null:1M", status=1)
    assert os.listdir(short_tmp) == []


def test_a_pid_file_is_replaced_whole(short_tmp):
    path = os.path.join(short_tmp, "pid")
    with open(path, "wb") as file:
        file.write(b"999999999\n" * 100)
    with Server("--pid-file", path, "null:1M") as server:
        with open(path, encoding="ascii") as file:
            assert file.read() == f"{server.pid}\n"
    assert os.listdir(short_tmp) == []


def test_disks_that_can_not_be_opened(short_tmp):
    path = os.path.join(short_tmp, "s")
    for name in ("/nonexistent/disk", "nbd+unix:///?socket=/nonexistent/s", "/dev/tty-none"):
        result = run("penstock", "serve", "-U", path, name, status=1)
        assert name in result.err and os.listdir(short_tmp) == []
    with pytest.raises(Failed, match="did not start"):
        Server("/nonexistent/disk").start()


def test_a_failed_flush_is_the_exit_status(short_tmp):
    disk = os.path.join(short_tmp, "disk")
    with open(disk, "wb") as file:
        file.truncate(MIB)
    server = Server(f"fault:flush-error=EIO:{disk}")
    server.start()
    client = connect(server.uri())
    client.pwrite(b"x" * 512, 0)
    client.shutdown()
    server.stop(1)


def test_log_lines():
    with Server("-v", "null:1M") as server:
        client = connect(server.uri())
        wait_until(lambda: "has come: send buffer 2 MiB wanted, " in server.err())
        client.shutdown()
        wait_until(lambda: "has gone: " in server.err())
        assert "listening on " in server.err()
    with Server("null:1M") as server:
        connect(server.uri()).shutdown()
        assert server.err() == "" or "wmem_max" in server.err()


def test_a_name_does_not_make_log_lines_of_its_own(short_tmp):
    path = os.path.join(short_tmp, "s\npenstock: error: all is lost\x1b[2J")
    result = run("penstock", "serve", "-v", "-U", path, "--run", "true", "null:1M")
    assert "s\\x0apenstock: error: all is lost\\x1b[2J" in result.err
    assert "\npenstock: error" not in result.err and "\x1b" not in result.err
