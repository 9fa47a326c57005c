"""The harness itself: peers come up, serve the right bytes, and go away."""

import os

import nbd
import pytest

from harness import (Failed, NbdServer, Nbdkit, QemuNbd, compare_files, image_odd, image_random,
                     random_chunk, run, start, wait_until)


def read_all(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    data = handle.pread(handle.get_size(), 0)
    handle.shutdown()
    return bytes(data)


@pytest.fixture
def disk(tmp_path):
    return image_random(tmp_path / "disk", 2 << 20, seed=7)


def test_qemu_nbd(disk):
    with QemuNbd("-f", "raw", disk) as peer:
        assert read_all(peer.uri()) == random_chunk(0, 2 << 20, seed=7)
        folder = peer.folder
    assert not os.path.exists(folder)


def test_nbdkit(disk):
    with Nbdkit("file", disk) as peer:
        assert read_all(peer.uri()) == random_chunk(0, 2 << 20, seed=7)


def test_nbd_server(disk):
    with NbdServer(disk) as peer:
        assert read_all(peer.uri()) == random_chunk(0, 2 << 20, seed=7)


def test_run_checks_the_status():
    assert run("sh", "-c", "echo a; echo b >&2; exit 3", status=3) == (3, "a\n", "b\n")
    with pytest.raises(Failed, match="exit 3"):
        run("sh", "-c", "exit 3")


def test_signals_are_as_a_terminal_leaves_them():
    lines = run("cat", "/proc/self/status").out.splitlines()
    masks = dict(line.split()[:2] for line in lines if line.startswith(("SigIgn", "SigBlk")))
    ordinary = (1 << 31) - 1  # those above are the C library's and real-time ones
    assert {name: int(mask, 16) & ordinary for name, mask in masks.items()} == \
        {"SigIgn:": 0, "SigBlk:": 0}


def test_a_program_is_ended_when_it_takes_too_long():
    program = start("cat", "/dev/zero")
    with pytest.raises(Failed, match="not done"):
        program.wait(0.05)
    wait_until(lambda: not program.running())


def test_images(tmp_path):
    one = image_odd(tmp_path / "one")
    two = image_odd(tmp_path / "two")
    compare_files(one, two)
    with open(two, "r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(AssertionError, match="at byte 1000"):
        compare_files(one, two)
