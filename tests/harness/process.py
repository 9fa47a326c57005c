"""
Programs that tests start: with a time limit, output in files, no terminal, and an end for sure.

No preexec_fn anywhere: Python then starts programs by vfork, which is fast whatever the size of
the test's own memory.
"""

import collections
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PENSTOCK = os.environ.get("PENSTOCK", os.path.join(ROOT, "build/src/cli/penstock"))
TIME_FACTOR = float(os.environ.get("PENSTOCK_TIME_FACTOR", "1"))

SANITIZER = re.compile(
    rb"(ERROR|WARNING): (Address|Thread|Leak|Memory)Sanitizer|runtime error: |"
    rb"LeakSanitizer has encountered")

_living = {}  # pid: the Program, from its start until it was waited for


def time_limit(seconds):
    """A limit stretched for sanitizer builds. Never assert that something is fast."""
    return seconds * TIME_FACTOR


class Failed(AssertionError):
    """A program did not end as it should."""


Result = collections.namedtuple("Result", "status out err")


class Program:
    """A running program. Its output goes to files, so that it never waits for us to read it."""

    def __init__(self, argv, env=None, stdin=subprocess.DEVNULL, stdout=None, pass_fds=(),
                 cwd=None):
        self.argv = [os.fspath(arg) for arg in argv]
        self._out = tempfile.TemporaryFile() if stdout is None else None
        self._err = tempfile.TemporaryFile()
        if isinstance(stdin, bytes):
            file = tempfile.TemporaryFile()
            file.write(stdin)
            file.seek(0)
            stdin = file
        self.popen = subprocess.Popen(
            self.argv, env={**os.environ, **(env or {})}, stdin=stdin, cwd=cwd,
            stdout=self._out if stdout is None else stdout, stderr=self._err, pass_fds=pass_fds)
        self.pid = self.popen.pid
        _living[self.pid] = self

    def out(self):
        """Standard output up to now, bytes."""
        return self._read(self._out)

    def err(self):
        """Standard error up to now, bytes."""
        return self._read(self._err)

    @staticmethod
    def _read(file):
        if file is None:
            return b""
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

    def running(self):
        return self.popen.poll() is None

    def kill(self, number=signal.SIGKILL):
        if self.running():
            self.popen.send_signal(number)

    def wait(self, seconds=60):
        """Its exit status (negative: the signal that ended it). Killed and Failed if too slow."""
        try:
            status = self.popen.wait(time_limit(seconds))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            _living.pop(self.pid, None)
            raise Failed(f"not done after {time_limit(seconds):g} s: {self.describe()}") from None
        _living.pop(self.pid, None)
        if SANITIZER.search(self.err()):
            raise Failed(f"a sanitizer spoke: {self.describe()}")
        return status

    def describe(self):
        text = f"{' '.join(self.argv)} (status {self.popen.returncode})"
        for name, data in (("stdout", self.out()), ("stderr", self.err())):
            if data:
                text += f"\n--- {name}:\n{data[-20000:].decode(errors='replace')}"
        return text


def start(*argv, **options):
    """Starts a program (options: those of Program); ends with the test at the latest."""
    return Program(argv, **options)


def run(*argv, status=0, seconds=60, **options):
    """
    Runs a program to its end. Its first word "penstock" is the binary under test. Returns
    (status, out, err), the last two as text; Failed unless it exits with `status` (a number or a
    list of numbers; None: any).
    """
    argv = [PENSTOCK if argv[0] == "penstock" else argv[0], *argv[1:]]
    program = Program(argv, **options)
    got = program.wait(seconds)
    allowed = status if isinstance(status, (list, tuple)) else [status]
    if status is not None and got not in allowed:
        raise Failed(f"exit {got}, not {status}: {program.describe()}")
    return Result(got, program.out().decode(errors="replace"),
                  program.err().decode(errors="replace"))


def living():
    """The process ids of programs that run now."""
    return set(_living)


def kill_all(but=()):
    """Kills what is still running, but for some ids; says what that was. Any thread."""
    left = []
    for program in list(_living.values()):
        if program.pid in but:
            continue
        if program.running():
            left.append(program.describe())
            program.popen.kill()
            program.popen.wait()
        _living.pop(program.pid, None)
    return left


def wait_until(condition, seconds=60, what="the condition"):
    """Waits until condition() is true and returns what it returned."""
    limit = time.monotonic() + time_limit(seconds)
    pause = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise Failed(f"not within {time_limit(seconds):g} s: {what}")
        # The one pause of all tests: between two looks at a condition.
        _pause(pause)
        pause = min(pause * 1.5, 0.05)


def _pause(seconds):
    signal.sigtimedwait([], seconds)


def requires(*tools):
    """Skips the test unless all these programs are there."""
    for tool in tools:
        if not shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            pytest.skip(f"skipped: there is no {tool}")


def children_marked(name, value):
    """Living processes that have name=value in their environment."""
    wanted = f"{name}={value}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    pids.append(int(entry))
        except OSError:
            continue
    return pids
