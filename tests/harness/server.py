"""`penstock serve`, from ready to a clean end."""

import contextlib
import os
import select
import shutil
import signal
import tempfile
import time
import urllib.parse
import uuid

from . import process
from .process import PENSTOCK, Failed, Program, time_limit


def nbd_uri(socket, export=""):
    """The URI of an export on a Unix socket."""
    return (f"nbd+unix:///{urllib.parse.quote(export, safe='')}"
            f"?socket={urllib.parse.quote(socket)}")


def read_line(fd, program, seconds):
    """A line, or all there was before the end of file, from a pipe that `program` writes to."""
    limit = time.monotonic() + time_limit(seconds)
    data = b""
    while b"\n" not in data:
        left = limit - time.monotonic()
        if left <= 0:
            program.kill()
            program.wait()
            raise Failed(f"not ready after {time_limit(seconds):g} s: {program.describe()}")
        if select.select([fd], [], [], left)[0]:
            more = os.read(fd, 4096)
            if not more:
                break
            data += more
    return data


class Server:
    """
    with Server(disk) as server:           # penstock serve -U SOCKET --ready-fd N disk
        nbd.NBD().connect_uri(server.uri())

    On leaving it is stopped by SIGTERM: it must exit 0, without a word from a sanitizer, and must
    leave neither its socket nor a process behind. stop(status=...) before that for other ends;
    kill() for kill -9.
    """

    def __init__(self, *args, env=None, socket=True, stdin=None):
        self.args = args
        self.env = env or {}
        self.folder = None
        self.socket = None
        self.program = None
        self.ready = b""
        self._listen = socket
        self._stdin = stdin

    def __enter__(self):
        self.start()
        return self

    def start(self, seconds=60):
        self.folder = tempfile.mkdtemp(prefix="ps", dir="/tmp")
        self._mark = uuid.uuid4().hex
        argv = [PENSTOCK, "serve"]
        if self._listen:
            self.socket = os.path.join(self.folder, "s")
            argv += ["-U", self.socket]
        reader, writer = os.pipe()
        argv += ["--ready-fd", str(writer), *self.args]
        try:
            options = {"stdin": self._stdin} if self._stdin is not None else {}
            self.program = Program(argv, env={**self.env, "PENSTOCK_TEST_SERVER": self._mark},
                                   pass_fds=[writer], **options)
            os.close(writer)
            writer = -1
            self.ready = read_line(reader, self.program, seconds)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        if not self.ready:
            self.program.kill()
            self.program.wait()
            self._remove()
            raise Failed(f"the server did not start: {self.program.describe()}")

    @property
    def pid(self):
        return self.program.pid

    def uri(self, export=""):
        return nbd_uri(self.socket, export)

    def err(self):
        """What it has said on standard error up to now, as text."""
        return self.program.err().decode(errors="replace")

    def memory_kib(self):
        """Its resident memory now."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024

    def descriptors(self):
        """How many it has open, but for those of event loops and rings, which it makes when it
        first needs them and keeps."""
        folder = f"/proc/{self.pid}/fd"
        count = 0
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                count += not os.readlink(os.path.join(folder, name)).startswith("anon_inode:")
        return count

    def kill(self):
        """kill -9, and no questions about what it left behind."""
        self.program.kill()
        self.program.wait()
        self._remove()

    def wait(self, status=0, seconds=60):
        """Until it ends by itself."""
        got = self.program.wait(seconds)
        try:
            if got != status:
                raise Failed(f"exit {got}, not {status}: {self.program.describe()}")
            if self.socket and os.path.exists(self.socket):
                raise Failed(f"it left {self.socket} behind: {self.program.describe()}")
            left = process.children_marked("PENSTOCK_TEST_SERVER", self._mark)
            if left:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise Failed(f"it left processes {left} behind: {self.program.describe()}")
        finally:
            self._remove()

    def stop(self, status=0, seconds=60):
        """SIGTERM, and a clean end."""
        self.program.kill(signal.SIGTERM)
        self.wait(status, seconds)

    def _remove(self):
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def __exit__(self, kind, value, traceback):
        if self.folder is None:
            return
        if kind is not None:
            # The test has failed already; say what the server said too.
            self.program.kill(signal.SIGTERM)
            try:
                self.program.wait()
            finally:
                print(self.program.describe())
                self._remove()
            return
        self.stop()
