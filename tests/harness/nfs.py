"""
nfs-ganesha on a folder, at two free ports of 127.0.0.1, for tests of the NFS driver.

    with Ganesha(folder) as server:
        run("penstock", "info", server.url("disk"))

ganesha ends at once when it cannot tell an rpcbind about its NFSv3, and rpcbind's socket is at a
fixed place in /run. So both run in a mount namespace of their own with an empty /run, where
rpcbind's /etc/netconfig has local sockets only: no port is opened but the two. Once ganesha is up
the rpcbind is ended.

The folder must be on a file system that has file handles: tmpfs or ext4, not an overlay.
"""

import contextlib
import glob
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile

import pytest

from .process import Failed, requires, run, start, wait_until

# Below the ports that Linux gives to outgoing connections.
FIRST_PORT, LAST_PORT = 20000, 32000

CONFIG = """
NFS_CORE_PARAM {{
    NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = 127.0.0.1; Protocols = 3;
    Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = true;
    Plugins_Dir = "{plugins}"; RPC_Ioq_ThrdMax = 4;
}}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{state}/recovery"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{
    Export_Id = 1; Path = "{folder}"; Pseudo = "/export"; Protocols = 3; Transports = TCP;
    Access_Type = RW; Squash = no_root_squash; SecType = sys; FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = EVENT; }}
"""

# $1: the state folder. The shell becomes ganesha; the rpcbind's process id goes to a file.
SCRIPT = """
mount -t tmpfs -o size=4m,mode=755 private /run || exit 1
mkdir -p /run/rpcbind /run/ganesha
chown _rpc /run/rpcbind 2>/dev/null
grep '^local ' /etc/netconfig > "$1/netconfig" || exit 1
unshare --mount sh -c 'mount --bind "$1/netconfig" /etc/netconfig && exec rpcbind -f' sh "$1" &
echo $! > "$1/rpcbind"
tries=0
while [ ! -S /run/rpcbind.sock ] && [ $tries -lt 3000 ]; do tries=$((tries + 1)); sleep 0.01; done
exec ganesha.nfsd -F -f "$1/conf" -L "$1/log" -p "$1/pid" -N NIV_EVENT
"""


def plugins():
    found = glob.glob("/usr/lib/*/ganesha/libfsalvfs.so")
    if not found:
        pytest.skip("skipped: there is no nfs-ganesha-vfs")
    return os.path.dirname(found[0])


def requires_libnfs():
    """Skips the test when penstock was built without the driver."""
    if not re.search(r"^ *nfs +yes", run("penstock", "--version").out, re.MULTILINE):
        pytest.skip("skipped: penstock was built without libnfs")


def requires_ganesha():
    """Skips the test where no server can be had: a tool is missing, or the rights of root are."""
    if os.geteuid() != 0:
        pytest.skip("skipped: nfs-ganesha needs root")
    requires("ganesha.nfsd", "rpcbind", "unshare", "mount")
    plugins()
    if subprocess.run(["unshare", "--mount", "--propagation", "private", "true"], check=False,
                      stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("skipped: no mount namespace for nfs-ganesha")


def free_ports():
    """Two neighbours that nobody has now."""
    for _ in range(200):
        port = random.SystemRandom().randrange(FIRST_PORT, LAST_PORT, 2)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in (port, port + 1):
                sock = stack.enter_context(socket.socket())
                sock.bind(("127.0.0.1", number))
            return port
    raise Failed("no free ports")


class Ganesha:
    def __init__(self, folder):
        self.folder = os.fspath(folder)
        self.program = None
        self.port = 0

    def __enter__(self):
        self.state = tempfile.mkdtemp(prefix="psnfs", dir="/tmp")
        os.mkdir(os.path.join(self.state, "recovery"))
        try:
            for _ in range(5):  # somebody may take the ports meanwhile
                self.port = free_ports()
                self._configure()
                if self.start():
                    return self
            raise Failed(f"nfs-ganesha did not start: {self._log()}")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind, value, traceback):
        self.kill()
        shutil.rmtree(self.state, ignore_errors=True)

    def url(self, name, **options):
        more = "".join(f"&{key.replace('_', '-')}={value}" for key, value in options.items())
        return (f"nfs://127.0.0.1/export/{name}?nfsport={self.port}"
                f"&mountport={self.port + 1}{more}")

    def start(self):
        """Again, after kill(), at the same ports. False: it ended at once."""
        with open(os.path.join(self.state, "log"), "w", encoding="utf-8"):
            pass
        self.program = start("unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT,
                             "sh", self.state)
        wait_until(lambda: self._ready() or not self.program.running(), what="nfs-ganesha")
        self._end_rpcbind()
        if self.program.running():
            return True
        self.program.wait()
        return False

    def kill(self):
        """kill -9; nothing of it is kept but the files."""
        if self.program:
            self.program.kill()
            self.program.wait()
            self.program = None
        self._end_rpcbind()

    def _configure(self):
        with open(os.path.join(self.state, "conf"), "w", encoding="utf-8") as file:
            file.write(CONFIG.format(port=self.port, mount_port=self.port + 1, plugins=plugins(),
                                     state=self.state, folder=self.folder))

    def _log(self):
        with open(os.path.join(self.state, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-8000:]

    def _ready(self):
        if "NFS SERVER INITIALIZED" not in self._log():
            return False
        for port in (self.port, self.port + 1):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
        return True

    def _end_rpcbind(self):
        path = os.path.join(self.state, "rpcbind")
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                pid = int(file.read())
            os.unlink(path)
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                ours = file.read().strip() in ("rpcbind", "sh", "unshare")
            if ours:
                os.kill(pid, signal.SIGKILL)
