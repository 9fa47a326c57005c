"""penstock serve: sockets from systemd, standard input and output, --run."""

import os
import re
import select
import signal
import socket
import subprocess

import nbd
import pytest

from harness import (PENSTOCK, image_random, random_chunk, requires, run, start, time_limit,
                     wait_until)

MIB = 1 << 20
# A shell, because LISTEN_PID must be known before the program is there.
ACTIVATE = ('exec 3<&"$1"; shift; export LISTEN_PID=$$ LISTEN_FDS="${fds:-1}"; exec "$@"')


def connect(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    return handle


def activated(sock, *args, **options):
    """penstock serve as systemd starts it: the socket is descriptor 3."""
    return start("bash", "-c", ACTIVATE, "bash", str(sock.fileno()), PENSTOCK, "serve", *args,
                 pass_fds=[sock.fileno()], **options)


def test_socket_activation(short_tmp):
    path = os.path.join(short_tmp, "s")
    for address in (path, ("127.0.0.1", 0)):
        with socket.socket(socket.AF_UNIX if address == path else socket.AF_INET) as sock:
            sock.bind(address)
            sock.listen()
            uri = f"nbd+unix:///?socket={path}"
            if address != path:
                uri = f"nbd://127.0.0.1:{sock.getsockname()[1]}/"
            program = activated(sock, "-r", "pattern:1M")
        # From here on only the server has it: a client waits in the backlog, or is refused.
        assert connect(uri).get_size() == MIB
        program.kill(signal.SIGTERM)
        assert program.wait() == 0, program.describe()
    assert os.path.exists(path)  # it is systemd's


def test_socket_activation_gone_wrong(short_tmp):
    path = os.path.join(short_tmp, "s")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        # It does not listen.
        program = activated(sock, "null:1M")
        assert program.wait() == 1, program.describe()
        sock.listen()
        program = activated(sock, "-U", path + "2", "null:1M")
        assert program.wait() == 1 and b"LISTEN_FDS" in program.err()
        program = activated(sock, "null:1M", env={"fds": "x"})
        assert program.wait() in (1, 2), program.describe()
    # Meant for another process: not ours.
    result = run("penstock", "serve", "null:1M", status=[1, 2],
                 env={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    assert "say where to listen" in result.err


def test_stdio_is_a_socket(tmp_path):
    disk = image_random(tmp_path / "disk", MIB)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = start(PENSTOCK, "serve", "--stdio", disk, stdin=theirs, stdout=theirs)
        theirs.close()
        client = nbd.NBD()
        client.connect_socket(ours.detach())
        assert client.pread(MIB, 0) == random_chunk(0, MIB)
        client.pwrite(b"x" * 512, 0)
        client.shutdown()
        assert program.wait() == 0, program.describe()
    assert disk.read_bytes()[:512] == b"x" * 512


def test_stdio_as_inetd_does_it():
    """Standard error is the client's socket, too; nothing but NBD may go there."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = subprocess.Popen([PENSTOCK, "serve", "-v", "--stdio", "null:1M"], stdin=theirs,
                                   stdout=theirs, stderr=theirs)
        theirs.close()
        try:
            client = nbd.NBD()
            client.connect_socket(ours.detach())
            assert client.get_size() == MIB
            client.shutdown()
            assert program.wait(time_limit(60)) == 0
        finally:
            program.kill()
            program.wait()


def test_stdio_is_two_pipes():
    reply_reader, reply_writer = os.pipe()
    request_reader, request_writer = os.pipe()
    program = start(PENSTOCK, "serve", "--stdio", "null:1M", stdin=request_reader,
                    stdout=reply_writer)
    os.close(request_reader)
    os.close(reply_writer)
    with os.fdopen(reply_reader, "rb") as replies, os.fdopen(request_writer, "wb") as requests:
        assert replies.read(18)[:16] == b"NBDMAGICIHAVEOPT"
        # Flags, then NBD_OPT_ABORT.
        requests.write(b"\0\0\0\x03" + b"IHAVEOPT" + b"\0\0\0\x02" + bytes(4))
        requests.flush()
        assert replies.read(20)[:8] == b"\0\x03\xe8\x89\x04\x55\x65\xa9"
        assert replies.read() == b""
    assert program.wait() == 0, program.describe()


def test_stdio_is_stopped_by_a_signal():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = start(PENSTOCK, "serve", "--stdio", "null:1M", stdin=theirs, stdout=theirs)
        client = nbd.NBD()
        client.connect_socket(ours.detach())
        assert client.get_size() == MIB
        program.kill(signal.SIGTERM)
        assert program.wait() == 0, program.describe()


def folder_of(result):
    return os.path.dirname(re.search(r"socket=(\S+)", result.out).group(1))


def test_run_and_its_exit_status():
    for command, status in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9),
                            ("nonexistent-command", 127)):
        result = run("penstock", "serve", "null:1M", "--run", f"echo $uri; {command}",
                     status=status)
        assert not os.path.exists(folder_of(result)), command


def test_run_gives_the_address(tmp_path, short_tmp):
    disk = image_random(tmp_path / "disk", MIB)
    info = f'{PENSTOCK} info --json "$uri"; echo "$unixsocket"; stat -c %a "${{unixsocket%/*}}"'
    result = run("penstock", "serve", disk, "--export", "a b", "null:3M", "--run", info)
    assert '"size": 1048576' in result.out
    assert result.out.endswith("/nbd.sock\n700\n")
    result = run("penstock", "serve", "--export", "a b", "null:3M", "--run", info)
    assert '"size": 3145728' in result.out
    path = os.path.join(short_tmp, "s")
    result = run("penstock", "serve", "-U", path, "null:1M", "--run", 'echo "$unixsocket"')
    assert result.out == path + "\n" and os.listdir(short_tmp) == []
    result = run("penstock", "serve", "--tcp", "127.0.0.1:0", "null:1M", "--run",
                 'echo "$uri:$unixsocket:"')
    assert re.fullmatch(r"nbd://127\.0\.0\.1:[1-9]\d*/::\n", result.out)


def test_the_command_has_ordinary_signals():
    show = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    plain = run("sh", "-c", show).out
    assert run("penstock", "serve", "null:1M", "--run", show).out == plain


def test_signals_are_passed_on_to_the_command(short_tmp):
    for number in (signal.SIGTERM, signal.SIGINT):
        ready = os.path.join(short_tmp, "ready")
        program = start(PENSTOCK, "serve", "null:1M", "--run",
                        f"echo $uri >{ready}.new; mv {ready}.new {ready}; exec cat",
                        stdin=subprocess.PIPE)
        wait_until(lambda: os.path.exists(ready))
        with open(ready, encoding="ascii") as file:
            folder = os.path.dirname(file.read().split("socket=")[1].strip())
        program.kill(number)
        assert program.wait() == 128 + number, program.describe()
        assert not os.path.exists(folder)
        os.unlink(ready)
        program.popen.stdin.close()


def test_a_second_signal_ends_a_stubborn_command(short_tmp):
    ready = os.path.join(short_tmp, "ready")
    program = start(PENSTOCK, "serve", "null:1M", "-U", short_tmp + "/s", "--run",
                    f"trap '' TERM INT; echo $$ >{ready}; while :; do read line; done",
                    stdin=subprocess.PIPE)
    wait_until(lambda: os.path.exists(ready) and os.path.getsize(ready))
    with open(ready, encoding="ascii") as file:
        command = int(file.read())

    def gone():
        program.kill(signal.SIGTERM)
        return not program.running()

    wait_until(gone)
    assert program.wait() == 1, program.describe()
    wait_until(lambda: not os.path.exists(f"/proc/{command}") or
               " Z " in open(f"/proc/{command}/stat", encoding="ascii").read())
    program.popen.stdin.close()
    assert os.listdir(short_tmp) == ["ready"]


def test_kill_9_of_the_server_ends_the_command(short_tmp):
    ready = os.path.join(short_tmp, "ready")
    program = start(PENSTOCK, "serve", "null:1M", "-U", short_tmp + "/s", "--run",
                    f"echo $$ >{ready}; exec cat", stdin=subprocess.PIPE)
    wait_until(lambda: os.path.exists(ready) and os.path.getsize(ready))
    with open(ready, encoding="ascii") as file:
        command = int(file.read())
    program.kill()
    program.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{command}") or
               " Z " in open(f"/proc/{command}/stat", encoding="ascii").read())
    program.popen.stdin.close()


@pytest.mark.parametrize("job_control", [False, True])
def test_a_terminal(short_tmp, job_control):
    """Ctrl-C is the command's; a stopped command stops the server, and both go on together."""
    requires("setsid")
    master, slave = os.openpty()
    ready = os.path.join(short_tmp, "ready")
    command = f"trap 'exit 5' INT; echo >{ready}; while :; do read line && echo got $line; done"
    program = start("setsid", "--ctty", PENSTOCK, "serve", "null:1M", "-U", short_tmp + "/s",
                    "--run", command, stdin=slave, stdout=slave)
    os.close(slave)
    try:
        wait_until(lambda: os.path.exists(ready))
        os.write(master, b"hello\n")
        seen = b""

        def answered():
            nonlocal seen
            if select.select([master], [], [], 0)[0]:
                seen += os.read(master, 4096)
            return b"got hello" in seen

        wait_until(answered)  # it has the terminal: it can read
        if job_control:
            children = f"/proc/{program.pid}/task/{program.pid}/children"
            with open(children, encoding="ascii") as file:
                child = int(file.read().split()[0])
            os.killpg(child, signal.SIGSTOP)
            wait_until(lambda: ") T " in open(f"/proc/{program.pid}/stat", encoding="ascii").read())
            program.kill(signal.SIGCONT)
            wait_until(lambda: ") T " not in open(f"/proc/{child}/stat", encoding="ascii").read())
        os.write(master, b"\x03")
        assert program.wait() == 5, program.describe()
    finally:
        os.close(master)
    assert os.listdir(short_tmp) == ["ready"]
