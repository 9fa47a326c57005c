"""
libvirt's QEMU driver in a process of its own, with penstock in the place of libvirt's I/O helper:

    unshare --mount --pid --fork --kill-child --mount-proc python3 embed.py FOLDER PENSTOCK

reads one JSON list [command, argument...] a line from standard input, and answers each with
{"ok": value} or {"error": libvirt's text}.

The mount namespace keeps the helper's replacement from the host. The process namespace ends
whatever libvirt has started, when this ends; its first process does nothing but wait for orphans,
since libvirt takes a virtual machine for gone only when its process has been waited for.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading

HELPER = "/usr/lib/libvirt/libvirt_iohelper"
CONFIG = """
user = "root"
group = "root"
security_driver = "none"
stdio_handler = "file"
namespaces = []
cgroup_controllers = []
remember_owner = 0
"""
PR_SET_PDEATHSIG = 1
SIGKILL = 9


# The driver does not start without these, whatever its configuration says. Debian's package
# libvirt-daemon-system makes them, and brings a firewall and much else.
ACCOUNTS = {"/etc/passwd": "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\n",
            "/etc/group": "libvirt-qemu:x:64055:\nkvm:x:64056:\n"}


def add_accounts(folder):
    """In this mount namespace only."""
    for path, text in ACCOUNTS.items():
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            old = file.read()
        copy = os.path.join(folder, os.path.basename(path))
        with open(copy, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(old.rstrip("\n") + "\n" + text)
        subprocess.run(["mount", "--bind", copy, path], check=True)


class Driver:
    """Each method but open() is a command."""

    def __init__(self, folder, penstock):
        self.folder = folder
        self.penstock = penstock
        self.connection = None
        self.domain = None

    def open(self):
        import libvirt  # threads and all: only now, after the fork
        subprocess.run(["mount", "--bind", self.penstock, HELPER], check=True)
        os.makedirs(os.path.join(self.folder, "etc"))
        add_accounts(self.folder)
        with open(os.path.join(self.folder, "etc/qemu.conf"), "w", encoding="ascii") as file:
            file.write(CONFIG)
        libvirt.registerErrorHandler(lambda context, error: None, None)
        libvirt.virEventRegisterDefaultImpl()

        def events():
            while True:
                libvirt.virEventRunDefaultImpl()

        threading.Thread(target=events, daemon=True).start()
        self.connection = libvirt.open("qemu:///embed?root=" + self.folder)
        return libvirt.libvirtError

    def define(self, xml):
        self.domain = self.connection.defineXML(xml)

    def start(self, flags=0):
        self.domain.createWithFlags(flags)

    def active(self):
        return self.domain.isActive() == 1

    def state(self):
        return self.domain.state()[0]

    def save(self, path, flags):
        self.domain.saveFlags(path, None, flags)

    def restore(self, path, flags):
        self.connection.restoreFlags(path, None, flags)

    def managed_save(self, flags):
        self.domain.managedSave(flags)

    def dump(self, path, flags):
        self.domain.coreDumpWithFormat(path, 0, flags)

    def destroy(self):
        self.domain.destroy()

    def small_file_system(self, path, size):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)

    def listdir(self, path):
        return os.listdir(path)


def serve(driver):
    error_type = driver.open()
    print(json.dumps({"ok": os.path.samefile(HELPER, driver.penstock)}), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = {"ok": getattr(driver, command)(*arguments)}
        except error_type as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def wait_for_all(child):
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) & 255


def main():
    child = os.fork()
    if child:
        sys.exit(wait_for_all(child))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    serve(Driver(*sys.argv[1:]))
    os._exit(0)  # libvirt's threads run on


main()
