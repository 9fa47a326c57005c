"""
Other people's NBD servers, each on a Unix socket of its own.

    with QemuNbd(disk, "-f", "raw") as peer:
        run("penstock", "copy", peer.uri(), "out.raw")

All have .socket, .uri(export=""), .kill() and .pid; they are ready when `with` begins.
"""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import uuid

from .process import TIME_FACTOR, Failed, Program, children_marked, requires, wait_until
from .server import nbd_uri

START_SECONDS = 60  # whatever build is tested: peers are not slower for it


def listening(path):
    """Whether somebody accepts connections at a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def read_pid(path):
    """The number in a pid file, or 0 while there is none."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0


class Peer:
    """The part they share."""

    tool = ""
    attempts = 1

    def __init__(self, *args, env=None):
        requires(self.tool)
        self.args = [os.fspath(arg) for arg in args]
        self.env = env or {}
        self.folder = None
        self.socket = None
        self.program = None

    def argv(self):
        raise NotImplementedError

    def is_ready(self):
        return os.path.exists(self.socket) and listening(self.socket)

    def running(self):
        return self.program.running()

    def __enter__(self):
        for attempt in range(self.attempts):
            try:
                return self.start()
            except Failed:
                if attempt == self.attempts - 1:
                    raise

    def start(self):
        self.folder = tempfile.mkdtemp(prefix="ps", dir="/tmp")
        self.socket = os.path.join(self.folder, "s")
        self.mark = uuid.uuid4().hex
        self.program = Program(self.argv(), env={**self.env, "PENSTOCK_TEST_PEER": self.mark})

        def ready():
            if not self.running():
                raise Failed(f"it did not start: {self.program.describe()}")
            return self.is_ready()

        try:
            wait_until(ready, START_SECONDS / TIME_FACTOR, what=f"{self.tool} listens")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def pid(self):
        return self.program.pid

    def uri(self, export=""):
        return nbd_uri(self.socket, export)

    def kill(self):
        self.program.kill()
        self.program.wait()

    def __exit__(self, kind, value, traceback):
        self.program.kill(signal.SIGTERM)
        try:
            self.program.wait(20)
        except Failed:
            pass  # killed by now; how a peer ends is not what is tested
        if kind is not None:
            print(self.program.describe())
        shutil.rmtree(self.folder, ignore_errors=True)


class QemuNbd(Peer):
    """qemu-nbd ARGS; 16 clients, stays when they leave. Give -f raw or -f qcow2, and the file."""

    tool = "qemu-nbd"

    def argv(self):
        # The probe for readiness is a client too: it must not be the one it waits for.
        return ["qemu-nbd", "--persistent", "--shared=16", "-k", self.socket, *self.args]


class Nbdkit(Peer):
    """nbdkit ARGS: a plug-in and its parameters, filters before it."""

    tool = "nbdkit"

    def argv(self):
        self.pid_file = os.path.join(self.folder, "pid")
        return ["nbdkit", "--foreground", "--exit-with-parent", "--pidfile", self.pid_file, "-U",
                self.socket, *self.args]

    def is_ready(self):
        # Some filters count connections: it says itself when it is ready.
        return os.path.exists(self.pid_file) and os.path.getsize(self.pid_file) > 0


class NbdServer(Peer):
    """nbd-server with one export "disk" of the file given; lines: more for its section."""

    tool = "nbd-server"
    attempts = 3  # as a daemon it can die without a word

    def __init__(self, disk, *lines):
        super().__init__(disk)
        self.lines = lines

    def argv(self):
        # It can stay in the foreground only to serve one client: let it become a daemon.
        path = os.path.join(self.folder, "config")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([
                "[generic]", f"    unixsock = {self.socket}", "    allowlist = true",
                "[disk]", f"    exportname = {self.args[0]}", *self.lines, ""]))
        self.pid_file = os.path.join(self.folder, "pid")
        return ["nbd-server", "-C", path, "-p", self.pid_file]

    def is_ready(self):
        return read_pid(self.pid_file) > 0 and super().is_ready()

    def running(self):
        # What was started ends at once, but its child is there before.
        return self.program.running() or bool(children_marked("PENSTOCK_TEST_PEER", self.mark))

    @property
    def pid(self):
        return read_pid(self.pid_file)

    def uri(self, export="disk"):
        return super().uri(export)

    def kill(self, number=signal.SIGKILL):
        # One process listens, and one serves each client; all carry the mark.
        for pid in children_marked("PENSTOCK_TEST_PEER", self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        wait_until(lambda: not children_marked("PENSTOCK_TEST_PEER", self.mark),
                   what="nbd-server's end")

    def __exit__(self, kind, value, traceback):
        self.kill()
        super().__exit__(kind, value, traceback)
