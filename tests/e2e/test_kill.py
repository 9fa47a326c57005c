"""
One side of a copy dies in the middle of it, by kill -9 or by a signal that it can catch. The other
side ends with a clear error, or goes on to serve others; nobody waits for ever, nothing is left.

A fault: endpoint holds the requests for one piece of the disk, so that "in the middle" is certain.
"""

import os
import signal

import pytest

from harness import (PENSTOCK, Server, compare_files, image_random, run, start, wait_until)

SIZE = 16 << 20
HELD = "@8M+1M"


@pytest.fixture
def disk(tmp_path):
    return image_random(tmp_path / "disk", SIZE, seed=11)


@pytest.fixture
def gate(tmp_path):
    """What is held goes on when this file appears; GATE.held appears when something is held."""
    return os.path.join(tmp_path, "go")


def wait_until_held(gate):
    wait_until(lambda: os.path.exists(gate + ".held"), what="the copy is in its middle")


def has_data(path):
    """Some of the copy has arrived."""
    return os.path.exists(path) and os.stat(path).st_blocks > 0


def copy(source, target):
    return start(PENSTOCK, "copy", source, target)


def test_server_dies_while_it_is_read(disk, gate, tmp_path):
    server = Server(f"fault:hold-read={gate}{HELD}:{disk}")
    server.start()
    client = copy(server.uri(), tmp_path / "out")
    wait_until_held(gate)
    assert client.running()
    server.kill()
    assert client.wait() == 1
    error = client.err().decode()
    assert error.startswith("penstock") and server.socket in error, error


def test_server_dies_while_it_is_written(disk, gate, tmp_path):
    target = tmp_path / "target"
    with open(target, "wb") as file:
        file.truncate(SIZE)
    server = Server(f"fault:hold-write={gate}{HELD}:{target}")
    server.start()
    client = copy(disk, server.uri())
    wait_until_held(gate)
    assert client.running()
    server.kill()
    assert client.wait() == 1
    error = client.err().decode()
    assert error.startswith("penstock") and server.socket in error, error


@pytest.mark.threaded
def test_client_dies_and_the_server_serves_others(disk, gate, tmp_path):
    with Server(f"fault:hold-read={gate}{HELD}:{disk}") as server:
        before = server.descriptors()
        clients = [copy(server.uri(), tmp_path / f"out{n}") for n in range(4)]
        for n, client in enumerate(clients):
            wait_until(lambda n=n: has_data(tmp_path / f"out{n}"), what="the copy has begun")
            assert client.running()
        for client in clients:
            client.kill()
            client.wait()
        with open(gate, "w", encoding="ascii"):
            pass
        wait_until(lambda: server.descriptors() <= before, what="descriptors are given back")
        run("penstock", "copy", server.uri(), tmp_path / "whole")
        compare_files(disk, tmp_path / "whole")


def test_server_is_stopped_while_a_request_is_held(disk, gate, tmp_path):
    server = Server(f"fault:hold-read={gate}{HELD}:{disk}")
    server.start()
    client = copy(server.uri(), tmp_path / "out")
    wait_until_held(gate)
    server.program.kill(signal.SIGTERM)
    with open(gate, "w", encoding="ascii"):
        pass
    # What was accepted is answered; what comes later is not.
    server.wait()
    assert client.wait() in (0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_copy_is_interrupted(disk, gate, short_tmp, number):
    target = os.path.join(short_tmp, "out")
    with Server(f"fault:hold-read={gate}{HELD}:{disk}") as server:
        client = copy(server.uri(), target)
        wait_until_held(gate)
        client.kill(number)
        status = client.wait()
        assert status in (1, 128 + number, -number), client.describe()
        with open(gate, "w", encoding="ascii"):
            pass
        run("penstock", "info", server.uri())
    assert set(os.listdir(short_tmp)) <= {"out"}


def test_a_socket_left_by_kill_is_taken_over(disk, short_tmp, tmp_path):
    path = os.path.join(short_tmp, "s")
    first = start(PENSTOCK, "serve", "-U", path, disk)
    wait_until(lambda: os.path.exists(path), what="the socket")
    uri = f"nbd+unix:///?socket={path}"
    first.kill()
    first.wait()
    assert os.path.exists(path)
    second = start(PENSTOCK, "serve", "-U", path, disk)
    wait_until(lambda: run("penstock", "info", uri, status=None).status == 0, what="it is served")
    run("penstock", "copy", uri, tmp_path / "out")
    second.kill(signal.SIGTERM)
    assert second.wait() == 0
    assert not os.path.exists(path)
    compare_files(disk, tmp_path / "out")
