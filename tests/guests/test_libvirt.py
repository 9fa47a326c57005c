"""
The QEMU driver of libvirt saves, restores and dumps a guest with penstock as its I/O helper, and
says what it always says when that fails; the guest survives.
"""

import json
import os
import re
import select
import subprocess
import sys

import pytest
from harness import PENSTOCK, requires, start, time_limit, wait_until
from harness import guest as guests

EMBED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "embed.py")
HELPER = "/usr/lib/libvirt/libvirt_iohelper"
NAMESPACES = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
              "--mount-proc"]

# include/libvirt/libvirt-domain.h; the module is not imported here, in pytest's own process.
RUNNING = 1
BYPASS_CACHE = 1
START_BYPASS_CACHE = 4
DUMP_BYPASS_CACHE = 4
DUMP_MEMORY_ONLY = 16

DOMAIN = """
<domain type='qemu'>
  <name>guest</name>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{guest.kernel}</kernel>
    <initrd>{guest.initrd}</initrd>
    <cmdline>{guest.arguments}</cmdline>
  </os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'>
      <source path='{serial}' append='on'/>
      <target port='0'/>
    </serial>
  </devices>
</domain>
"""

pytestmark = pytest.mark.limit(300)


class LibvirtError(Exception):
    """What libvirt has said."""


class Libvirt:
    """The driver's process, embed.py, and the guest."""

    def __init__(self, folder, guest):
        self.folder = folder
        self.serial = guests.Serial(os.path.join(folder, "libvirt.serial"))
        root = os.path.join(folder, "lv")
        os.mkdir(root)
        their_in, self.to = os.pipe()
        self.out, their_out = os.pipe()
        self.program = start(*NAMESPACES, sys.executable, EMBED, root, PENSTOCK, stdin=their_in,
                             stdout=their_out)
        os.close(their_in)
        os.close(their_out)
        self.buffer = b""
        assert self.answer() is True, "penstock is not in the helper's place"
        self.call("define", DOMAIN.format(guest=guest, memory=guests.MEMORY_MIB,
                                          serial=self.serial.path))
        self.call("start")
        self.digest = self.wait_passes(2)[-1][1]

    def answer(self):
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.out], [], [], time_limit(200))
            data = os.read(self.out, 65536) if ready else b""
            assert data, f"no answer from libvirt: {self.program.describe()}"
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise LibvirtError(answer["error"])
        return answer["ok"]

    def call(self, *words):
        os.write(self.to, json.dumps([os.fspath(w) if isinstance(w, os.PathLike) else w
                                      for w in words]).encode() + b"\n")
        return self.answer()

    def wait_passes(self, more):
        return self.serial.wait(more, self.program.running)

    def check(self):
        """The guest runs, and has had the same memory all the time."""
        assert self.call("state") == RUNNING
        passes = self.wait_passes(2)
        assert {digest for _, digest in passes} == {self.digest}
        numbers = [number for number, _ in passes]
        assert numbers == sorted(set(numbers)), "it booted again"

    def stop(self):
        for fd in (self.to, self.out):
            os.close(fd)
        self.program.kill()  # by --kill-child the whole namespace, the guest too
        self.program.wait()


def may_unshare():
    done = subprocess.run([*NAMESPACES, "true"], stdin=subprocess.DEVNULL, capture_output=True,
                          check=False)
    return os.geteuid() == 0 and done.returncode == 0


@pytest.fixture(scope="module")
def libvirt(guest, short_folder):
    requires("unshare")
    done = subprocess.run([sys.executable, "-c", "import libvirt"], capture_output=True,
                          check=False)
    if done.returncode != 0 or not os.path.exists(HELPER):
        pytest.skip("skipped: there is no libvirt")
    if not may_unshare():
        pytest.skip("skipped: no right to a mount namespace")
    driver = Libvirt(short_folder, guest)
    yield driver
    driver.stop()


def bypass_works_in(folder):
    """tmpfs takes O_DIRECT since Linux 6.6 only."""
    try:
        os.close(os.open(os.path.join(folder, "probe"), os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    finally:
        os.unlink(os.path.join(folder, "probe"))
    return True


@pytest.fixture
def place(tmp_path):
    if not bypass_works_in(tmp_path):
        pytest.skip("skipped: the file system of the temporary folder has no O_DIRECT")
    return tmp_path


@pytest.mark.parametrize("how", [BYPASS_CACHE, 0], ids=["bypass", "cached"])
@pytest.mark.parametrize("back", [BYPASS_CACHE, 0], ids=["bypass", "cached"])
def test_save_and_restore(libvirt, place, how, back):
    image = place / "image"
    libvirt.call("save", image, how)
    assert not libvirt.call("active")
    with open(image, "rb") as file:
        assert file.read(16) == b"LibvirtQemudSave"
    assert image.stat().st_size > guests.DIRTY_MIB << 20
    libvirt.call("restore", image, back)
    libvirt.check()


@pytest.mark.parametrize("how", [BYPASS_CACHE, 0], ids=["bypass", "cached"])
def test_managed_save_and_start(libvirt, place, how):
    libvirt.call("managed_save", how)
    assert not libvirt.call("active")
    libvirt.call("start", START_BYPASS_CACHE if how else 0)
    libvirt.check()


@pytest.mark.parametrize("how", [DUMP_BYPASS_CACHE, 0], ids=["bypass", "cached"])
def test_memory_dump(libvirt, place, how):
    core = place / "core"
    libvirt.call("dump", core, DUMP_MEMORY_ONLY | how)
    with open(core, "rb") as file:
        assert file.read(4) == b"\x7fELF"
    assert core.stat().st_size >= guests.MEMORY_MIB << 20
    core.unlink()
    libvirt.check()


@pytest.fixture(scope="module")
def small(libvirt, short_folder):
    """A folder that is small, in the driver's namespace only."""
    folder = os.path.join(short_folder, "small")
    os.mkdir(folder)
    libvirt.call("small_file_system", folder, "24m")
    return folder


def wait_state(libvirt, state):
    wait_until(lambda: libvirt.call("state") == state, what="the guest's return")


@pytest.mark.parametrize("what", ["save", "save-bypass", "dump", "dump-bypass"])
def test_a_full_disk(libvirt, small, what):
    command, _, bypass = what.partition("-")
    path = os.path.join(small, "image")
    flags = {"save": BYPASS_CACHE, "dump": DUMP_BYPASS_CACHE}[command] if bypass else 0
    if command == "dump":
        flags |= DUMP_MEMORY_ONLY
    with pytest.raises(LibvirtError) as caught:
        libvirt.call(command, path, flags)
    said = str(caught.value)
    if bypass and "Invalid argument" in said:
        pytest.skip("skipped: this kernel's tmpfs has no O_DIRECT")
    assert re.search(f"{HELPER}: failure with {re.escape(path)}: "
                     f"Unable to write {re.escape(path)}: No space left on device", said), said
    assert libvirt.call("listdir", small) == []
    wait_state(libvirt, RUNNING)
    libvirt.check()


def test_a_full_device(libvirt):
    with pytest.raises(LibvirtError) as caught:
        libvirt.call("save", "/dev/full", 0)
    assert "No space left on device" in str(caught.value)
    wait_state(libvirt, RUNNING)
    libvirt.check()
