"""
QEMU sends a guest's state through penstock into a file, and another QEMU gets it back: the guest
goes on where it was, with the memory that it had.
"""

import contextlib
import os
import shlex
import socket

import pytest
from harness import PENSTOCK, start, wait_until
from harness import guest as guests

FDWRAP = os.path.join(os.path.dirname(PENSTOCK), "../../tests/guests/fdwrap")
PROCESS = {"PENSTOCK_PROGRAM": PENSTOCK}

pytestmark = pytest.mark.limit(300)


class ByExec:
    """QEMU starts penstock by itself."""

    @staticmethod
    def command(*argv):
        return "exec:exec " + shlex.join(map(os.fspath, argv))

    def save(self, machine, path, options):
        got = machine.save(self.command(PENSTOCK, "save", *options, path))
        wait_until(path.exists, what="the file")
        return got

    def load(self, machine, path, options):
        return machine.load(self.command(PENSTOCK, "restore", *options, path))


class ByPipe:
    """QEMU has one end of a pipe, penstock the other."""

    def save(self, machine, path, options):
        r, w = os.pipe()
        program = start(PENSTOCK, "save", *options, path, stdin=r)
        os.close(r)
        got = machine.save("fd:state", [w])
        os.close(w)
        assert program.wait() == 0, program.describe()
        return got

    def load(self, machine, path, options):
        r, w = os.pipe()
        program = start(PENSTOCK, "restore", *options, path, stdout=w)
        os.close(w)
        got = machine.load("fd:state", [r])
        os.close(r)
        assert program.wait() == 0, program.describe()
        return got


class ByWrap:
    """QEMU has what penstock_fdwrap_open() gave to a program."""

    def __init__(self, helper):
        self.helper = helper

    def run(self, direction, call, path, options):
        cache = "direct" if "--direct" in options else "cached"
        ours, its = socket.socketpair()
        with ours:
            with its:
                program = start(FDWRAP, direction, self.helper, cache, path, str(its.fileno()),
                                pass_fds=[its.fileno()], env=PROCESS)
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        got = call("fd:state", fds)
        for fd in fds:
            os.close(fd)
        assert program.wait() == 0, program.describe()
        return got

    def save(self, machine, path, options):
        return self.run("save", machine.save, path, options)

    def load(self, machine, path, options):
        return self.run("restore", machine.load, path, options)


BY_EXEC, BY_PIPE = ByExec(), ByPipe()
THREAD, OWN_PROCESS = ByWrap("thread"), ByWrap("process")
PACKED = ["--compress", "zstd", "--digest"]

WAYS = {
    "exec": (BY_EXEC, [], BY_EXEC, []),
    "exec-direct": (BY_EXEC, ["--direct"], BY_PIPE, ["--direct"]),
    "pipe": (BY_PIPE, [], BY_PIPE, []),
    "pipe-packed": (BY_PIPE, PACKED, BY_EXEC, ["--digest"]),
    "pipe-direct": (BY_PIPE, ["--direct", "--digest"], BY_PIPE, ["--digest"]),
    "thread": (THREAD, [], THREAD, []),
    "process-direct": (OWN_PROCESS, ["--direct"], OWN_PROCESS, ["--direct"]),
}


@contextlib.contextmanager
def going_on(machine):
    """The guest runs again after the block, whatever came of it, and has what it had."""
    _, digest = machine.serial.passes()[-1]
    yield
    machine.go_on()
    assert {found for _, found in machine.wait_passes(1)} == {digest}


@pytest.mark.parametrize("way", WAYS)
def test_a_guest_goes_on(machine, guest, tmp_path, way):
    saver, save_options, loader, load_options = WAYS[way]
    path = tmp_path / "state"
    with going_on(machine):
        assert saver.save(machine, path, save_options) == "completed"
        last, digest = machine.serial.passes()[-1]
    assert path.stat().st_size > guests.DIRTY_MIB << 19
    with guests.Machine(guest, tmp_path, "copy", incoming=True) as copy:
        assert loader.load(copy, path, load_options) == "completed"
        copy.qmp.call("cont")
        for number, found in copy.wait_passes(2):
            assert (number > last, found) == (True, digest)


@pytest.mark.parametrize("way", ["pipe", "thread", "process"])
def test_a_full_disk(machine, tmp_path, way):
    r, w = os.pipe()
    if way == "pipe":
        program = start(PENSTOCK, "save", "/dev/full", stdin=r)
    else:
        ours, its = socket.socketpair()
        with ours:
            with its:
                program = start(FDWRAP, "save", way, "cached", "/dev/full", str(its.fileno()),
                                pass_fds=[its.fileno()], env=PROCESS)
            os.close(w)
            _, (w,), _, _ = socket.recv_fds(ours, 1, 1)
    os.close(r)
    with going_on(machine):
        assert machine.save("fd:state", [w]) == "failed"
        os.close(w)
        assert program.wait() == 1
        assert b"No space left on device" in program.err()
