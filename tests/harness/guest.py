"""
Small virtual machines: QEMU under emulation, a Debian kernel, and one program, tests/guests/init.c,
which says again and again what the digest of its memory is.

The kernel is what `scripts/install-deps guests` has put into one of KERNELS.
"""

import array
import gzip
import json
import os
import re
import socket

import pytest

from . import process
from .process import ROOT, requires, run, start, time_limit, wait_until

QEMU = "qemu-system-x86_64"
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
KERNELS = ["/var/cache/penstock-test/vmlinuz", os.path.join(CACHE, "penstock-test/vmlinuz")]

MEMORY_MIB = 160
DIRTY_MIB = 64
BOOT_SECONDS = 240
PASS = re.compile(r"^PASS (\d+) ([0-9a-f]{16})\r?\n", re.M)


def kernel():
    for path in KERNELS:
        if os.access(path, os.R_OK):
            return path
    pytest.skip("skipped: there is no kernel for guests (scripts/install-deps guests)")


def archive(entries):
    """A cpio archive ("newc") of (name, mode, data, device) entries."""
    out = b""
    for number, (name, mode, data, device) in enumerate(entries, 1):
        name = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
        entry = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        entry += bytes(-len(entry) % 4) + data
        out += entry + bytes(-len(entry) % 4)
    return out


class Guest:
    """What a virtual machine boots from."""

    def __init__(self, folder):
        requires(QEMU, "gcc")
        self.kernel = kernel()
        self.initrd = os.path.join(folder, "initrd.gz")
        self.arguments = f"console=ttyS0 quiet panic=-1 no_timer_check dirty_mib={DIRTY_MIB}"
        program = os.path.join(folder, "init")
        run("gcc", "-O2", "-static", "-s", "-o", program, os.path.join(ROOT, "tests/guests/init.c"))
        with open(program, "rb") as file:
            init = file.read()
        with gzip.open(self.initrd, "wb", 1) as file:
            file.write(archive([
                ("dev", 0o40755, b"", (0, 0)),
                ("dev/console", 0o20600, b"", (5, 1)),
                ("init", 0o100755, init, (0, 0)),
                ("TRAILER!!!", 0, b"", (0, 0))]))


class Serial:
    """A file with what the guest has said."""

    def __init__(self, path):
        self.path = path

    def text(self):
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def passes(self):
        """(number, digest) of each time that the guest has read its memory."""
        return [(int(number), digest) for number, digest in PASS.findall(self.text())]

    def wait(self, more, running, seconds=BOOT_SECONDS):
        """All passes, when there are `more` than now."""
        wanted = len(self.passes()) + more

        def enough():
            assert "Kernel panic" not in self.text() and running(), self.text()[-4000:]
            return len(self.passes()) >= wanted

        wait_until(enough, seconds, "the guest's words")
        return self.passes()


class Qmp:
    """QEMU's control socket."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""
        self.events = []
        self.receive()
        self.call("qmp_capabilities")

    def receive(self, seconds=60):
        self.sock.settimeout(time_limit(seconds))
        while b"\n" not in self.buffer:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise process.Failed("QEMU has closed its control socket")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def call(self, command, fds=(), **arguments):
        line = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.sock.sendmsg([line], rights)
        except (BrokenPipeError, ConnectionResetError):
            raise process.Failed("QEMU has closed its control socket") from None
        while True:
            answer = self.receive()
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise process.Failed(f"{command}: {answer['error']['desc']}")
            else:
                return answer["return"]

    def migrated(self):
        """How the migration ended: "completed" or "failed"."""
        while True:
            for event in self.events:
                if event["event"] == "MIGRATION" and event["data"]["status"] in (
                        "completed", "failed", "cancelled"):
                    self.events.remove(event)
                    return event["data"]["status"]
            answer = self.receive(seconds=100)
            if "event" in answer:
                self.events.append(answer)


class Machine:
    """A virtual machine that QEMU runs; incoming: it waits for another one's state."""

    def __init__(self, guest, folder, name, incoming=False):
        self.serial = Serial(os.path.join(folder, name + ".serial"))
        ours, its = socket.socketpair()
        self.program = start(
            QEMU, "-accel", "tcg", "-machine", "pc", "-m", str(MEMORY_MIB), "-nodefaults",
            "-no-user-config", "-display", "none", "-no-reboot", "-kernel", guest.kernel,
            "-initrd", guest.initrd, "-append", guest.arguments,
            "-serial", "file:" + self.serial.path,
            "-chardev", f"socket,id=qmp,fd={its.fileno()}", "-mon", "chardev=qmp,mode=control",
            *(["-S", "-incoming", "defer"] if incoming else []), pass_fds=[its.fileno()])
        its.close()
        try:
            self.qmp = Qmp(ours)
            self.qmp.call("migrate-set-capabilities",
                          capabilities=[{"capability": "events", "state": True}])
            self.qmp.call("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        except BaseException:
            ours.close()
            self.program.kill()
            self.program.wait()
            print(self.program.describe())
            raise

    def wait_passes(self, more):
        return self.serial.wait(more, self.program.running)

    def save(self, uri, fds=()):
        """Pauses, and sends the state to a place; fds: the one of uri fd:state."""
        self.qmp.call("stop")
        if fds:
            self.qmp.call("getfd", fds=fds, fdname="state")
        self.qmp.call("migrate", uri=uri)
        return self.qmp.migrated()

    def load(self, uri, fds=()):
        if fds:
            self.qmp.call("getfd", fds=fds, fdname="state")
        self.qmp.call("migrate-incoming", uri=uri)
        return self.qmp.migrated()

    def go_on(self):
        """After a save, whatever came of it."""
        wait_until(lambda: self.qmp.call("query-status")["status"] != "finish-migrate",
                   what="the end of the migration")
        self.qmp.call("cont")

    def stop(self):
        self.qmp.sock.close()
        self.program.kill()
        self.program.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            print(self.program.describe(), self.serial.text()[-2000:], sep="\n")
        self.stop()
