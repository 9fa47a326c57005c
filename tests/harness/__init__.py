"""What the pytest suites share; tests/README.md shows how to use it."""

from .images import (compare_files, image_odd, image_random, image_sparse, random_bytes,
                     random_chunk)
from .peers import Nbdkit, NbdServer, QemuNbd
from .process import (PENSTOCK, Failed, requires, run, start, time_limit, wait_until)
from .server import Server, nbd_uri

__all__ = [
    "PENSTOCK", "Failed", "NbdServer", "Nbdkit", "QemuNbd", "Server", "compare_files",
    "image_odd", "image_random", "image_sparse", "nbd_uri", "random_bytes", "random_chunk",
    "requires", "run", "start", "time_limit", "wait_until",
]
