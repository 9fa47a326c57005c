"""The cases: who is measured, doing what, and what penstock wants to reach."""

import os
import subprocess
from collections import namedtuple

from . import machine, measure

PS, MINIMAL = machine.PENSTOCK, machine.MINIMAL

Contender = namedtuple("Contender", "name run tools limit", defaults=[(), False])
Goal = namedtuple("Goal", "text ours theirs key at_least at_most more_is_better",
                  defaults=["wall", None, None, False])


class Case:
    def __init__(self, name, about, contenders, goals, prepare, drop=(), rounds=None):
        self.name, self.about, self.contenders, self.goals = name, about, contenders, goals
        self.prepare, self.drop, self.rounds = prepare, drop, rounds

    def clean(self, place):
        place.drop(*self.drop)


def socket_of(place):
    return os.path.join(place.memory, "s")


def uri_of(place):
    return f"nbd+unix:///?socket={socket_of(place)}"


# ---- servers and clients of NBD ----

def serve_argv(kind, place, disk, write=False):
    read_only = [] if write else ["-r"]
    return {
        "penstock": [PS, "serve", "-f", "raw", *read_only, "-U", socket_of(place), disk],
        "qemu-nbd": ["qemu-nbd", "-f", "raw", "-t", "-e", "16", *read_only, "-k",
                     socket_of(place), disk],
        "nbdkit": ["nbdkit", "-f", *read_only, "-U", socket_of(place), "file", disk],
        "minimal": [os.path.join(MINIMAL, "server"), socket_of(place), disk],
    }[kind]


def client_argv(kind, place):
    uri = uri_of(place)
    return {
        "penstock copy": [PS, "copy", uri, "null:"],
        "penstock sum": [PS, "sum", uri],
        "qemu-img": ["qemu-img", "convert", "-n", "-f", "raw", "--target-image-opts", uri,
                     f"driver=null-co,size={place.size}"],
        "nbdcopy": ["nbdcopy", uri, "null:"],
        "nbdcopy 256K x 64": ["nbdcopy", "--request-size=262144", uri, "null:"],
        "blksum": ["blksum", uri],
    }[kind]


def over_nbd(server, client, disk="random", write=None, env=None, client_env=None):
    """Runs a client against a server; the server's CPU counts from ready to done."""
    def run(place):
        path = os.path.join(place.memory, disk) if write is None else write
        with measure.server(serve_argv(server, place, path, write is not None),
                            socket_of(place), env) as process:
            before = measure.cpu_of(process.pid)
            argv = client(place) if callable(client) else client_argv(client, place)
            sample, _ = measure.run(argv, client_env)
            sample["server_cpu"] = measure.cpu_of(process.pid) - before
        return sample
    return run


def preload():
    return {"LD_PRELOAD": os.path.join(MINIMAL, "sndbuf.so")}


def prepare_random(place):
    place.random()
    return place


QEMU_IMG_READ = Case(
    "qemu-img-read", "qemu-img convert reads a server over a Unix socket", [
        Contender("penstock", over_nbd("penstock", "qemu-img"), ("qemu-img",)),
        Contender("qemu-nbd", over_nbd("qemu-nbd", "qemu-img"), ("qemu-img", "qemu-nbd")),
        Contender("qemu-nbd, 2 MiB buffers",
                  lambda place: over_nbd("qemu-nbd", "qemu-img", env=preload(),
                                         client_env=preload())(place), ("qemu-img", "qemu-nbd")),
        Contender("nbdkit", over_nbd("nbdkit", "qemu-img"), ("qemu-img", "nbdkit")),
        Contender("minimal server", over_nbd("minimal", "qemu-img"), ("qemu-img",), True),
    ], [
        Goal("qemu-img from penstock, by qemu-nbd", "penstock", "qemu-nbd", at_least=3.5),
        Goal("qemu-img from penstock, by qemu-nbd with 2 MiB buffers", "penstock",
             "qemu-nbd, 2 MiB buffers", at_least=3.0),
        Goal("qemu-img from penstock, by nbdkit", "penstock", "nbdkit", at_least=3.0),
        Goal("qemu-img from penstock, by the minimal server (limit)", "penstock",
             "minimal server", at_least=0.9),
        Goal("server CPU of penstock to qemu-nbd's", "penstock", "qemu-nbd", "server_cpu",
             at_most=0.4),
    ], prepare_random)

NBDCOPY_READ = Case(
    "nbdcopy-read", "nbdcopy reads a server over a Unix socket", [
        Contender("penstock", over_nbd("penstock", "nbdcopy"), ("nbdcopy",)),
        Contender("qemu-nbd", over_nbd("qemu-nbd", "nbdcopy"), ("nbdcopy", "qemu-nbd")),
        Contender("nbdkit", over_nbd("nbdkit", "nbdcopy"), ("nbdcopy", "nbdkit")),
        Contender("minimal server", over_nbd("minimal", "nbdcopy"), ("nbdcopy",), True),
    ], [
        Goal("nbdcopy from penstock, by qemu-nbd", "penstock", "qemu-nbd", at_least=2.0),
        Goal("nbdcopy from penstock, by nbdkit", "penstock", "nbdkit", at_least=2.0),
        Goal("nbdcopy from penstock, by the minimal server (limit)", "penstock", "minimal server",
             at_least=0.9),
    ], prepare_random)


def run_stream(place):
    return measure.run([os.path.join(MINIMAL, "stream"), place.random()])[0]


COPY_NULL = Case(
    "copy-null", "copying a server's disk to nowhere", [
        Contender("penstock", over_nbd("penstock", "penstock copy")),
        Contender("qemu-nbd to qemu-img", over_nbd("qemu-nbd", "qemu-img"),
                  ("qemu-img", "qemu-nbd")),
        Contender("nbdkit to nbdcopy", over_nbd("nbdkit", "nbdcopy"), ("nbdcopy", "nbdkit")),
        Contender("minimal sendfile", run_stream, (), True),
    ], [
        Goal("penstock to penstock, by qemu-nbd to qemu-img", "penstock", "qemu-nbd to qemu-img",
             at_least=5.0),
        Goal("penstock to penstock, by nbdkit to nbdcopy", "penstock", "nbdkit to nbdcopy",
             at_least=3.0),
        Goal("penstock to penstock, by the minimal sendfile program", "penstock",
             "minimal sendfile", at_least=0.75),
    ], prepare_random)


def prepare_target(folder):
    def prepare(place):
        place.random()
        where = place.memory if folder == "memory" else place.disk
        place.file("target", lambda path: measure.write_random(path, place.size), where)
        return place
    return prepare


def write_case(name, about, folder):
    def writer(server, argv):
        def run(place):
            where = place.memory if folder == "memory" else place.disk
            return over_nbd(server, lambda p: argv(p, uri_of(p)),
                            write=os.path.join(where, "target"))(place)
        return run
    penstock = writer("penstock", lambda p, uri: [PS, "copy", "-n", p.random(), uri])
    qemu = writer("qemu-nbd", lambda p, uri: ["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw",
                                              p.random(), uri])
    nbdkit = writer("nbdkit", lambda p, uri: ["nbdcopy", "--flush", p.random(), uri])
    return Case(name, about, [
        Contender("penstock", penstock),
        Contender("qemu-img to qemu-nbd", qemu, ("qemu-img", "qemu-nbd")),
        Contender("nbdcopy to nbdkit", nbdkit, ("nbdcopy", "nbdkit")),
    ], [Goal(f"writing to a file on {folder}, by qemu-img to qemu-nbd", "penstock",
             "qemu-img to qemu-nbd", at_least=2.0)], prepare_target(folder), ("target",))


# ---- sums ----

def plain(*argv):
    return lambda place: measure.run([str(a(place)) if callable(a) else a for a in argv])[0]


def random_file(place):
    return place.random()


SUM_FILE = Case("sum-file", "checksum of a file of random bytes", [
    Contender("penstock sum", plain(PS, "sum", random_file)),
    Contender("blksum", plain("blksum", random_file), ("blksum",)),
    Contender("openssl dgst -sha256", plain("openssl", "dgst", "-sha256", random_file),
              ("openssl",)),
], [
    Goal("sum of a random file, by blksum", "penstock sum", "blksum", at_least=3.5),
    Goal("sum of a random file, by openssl dgst", "penstock sum", "openssl dgst -sha256",
         at_least=3.0),
], prepare_random)


def make_striped(path, size):
    with open("/dev/urandom", "rb") as source, open(path, "wb") as file:
        for at in range(0, size, 2 << 20):
            file.seek(at)
            file.write(source.read(1 << 20))
        file.truncate(size)


def prepare_striped(place):
    place.file("striped", lambda path: make_striped(path, 3 * place.size))
    return place


def in_memory(name):
    return lambda place: os.path.join(place.memory, name)


SUM_SPARSE = Case("sum-sparse", "checksum of a file, 1 MiB of data and 1 MiB of hole in turn", [
    Contender("penstock sum", plain(PS, "sum", in_memory("striped"))),
    Contender("blksum", plain("blksum", in_memory("striped")), ("blksum",)),
], [Goal("sum of a half-sparse file, by blksum", "penstock sum", "blksum", at_least=3.5)],
    prepare_striped, ("striped",))

SUM_NBD = Case("sum-nbd", "checksum over NBD", [
    Contender("penstock from penstock", over_nbd("penstock", "penstock sum")),
    Contender("blksum from qemu-nbd", over_nbd("qemu-nbd", "blksum"), ("blksum", "qemu-nbd")),
    Contender("penstock from qemu-nbd", over_nbd("qemu-nbd", "penstock sum"), ("qemu-nbd",)),
], [Goal("sum over NBD, by blksum from qemu-nbd", "penstock from penstock",
         "blksum from qemu-nbd", at_least=2.0)], prepare_random)


def make_hole(size):
    def make(path):
        with open(path, "wb") as file:
            file.truncate(size)
    return make


def prepare_hole(place):
    place.file("hole", make_hole(1 << 40))
    return place


SUM_HOLE = Case("sum-hole", "checksum of a hole of 1 TiB", [
    Contender("penstock sum", plain(PS, "sum", in_memory("hole"))),
    Contender("SHA-256 of 512 MiB", plain(os.path.join(MINIMAL, "sha256")), (), True),
], [Goal("a hole of 1 TiB to hashing its block digests", "penstock sum", "SHA-256 of 512 MiB",
         at_most=1.1)], prepare_hole, ("hole",))


def many(count, *argv):
    """Seconds of one of count processes in a row."""
    def run(place):
        words = [a(place) if callable(a) else a for a in argv]
        begin = measure.time.monotonic()
        for _ in range(count):
            subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        return {"wall": (measure.time.monotonic() - begin) / count}
    return run


def prepare_small(place):
    place.file("small", lambda path: measure.write_random(path, 1 << 20))
    os.truncate(os.path.join(place.memory, "small"), 65536)
    return place


SUM_SMALL = Case("sum-small", "checksum of a file of 64 KiB, the whole process", [
    Contender("penstock sum", many(100, PS, "sum", in_memory("small"))),
    Contender("blksum", many(10, "blksum", in_memory("small")), ("blksum",)),
    Contender("/bin/true", many(100, "/bin/true"), (), True),
], [Goal("sum of 64 KiB, seconds a process", "penstock sum", None, at_most=0.005)], prepare_small,
    ("small",))


# ---- small requests ----

def fio(server, depth):
    def run(place):
        with measure.server(serve_argv(server, place, place.random()), socket_of(place)) as process:
            before = measure.cpu_of(process.pid)
            argv = ["fio", "--name=x", "--ioengine=nbd", f"--uri={uri_of(place)}", "--rw=randread",
                    "--bs=4k", f"--iodepth={depth}", "--time_based", "--runtime=3",
                    "--output-format=json", "--randrepeat=1"]
            sample, text = measure.run(argv, capture=True)
            sample["server_cpu"] = measure.cpu_of(process.pid) - before
        sample["iops"] = measure.iops_of(text)
        del sample["wall"]
        return sample
    return run


def fio_case(depth):
    goals = {1: 1.0, 4: None, 16: 1.5, 32: 1.5}[depth]
    kinds = ("qemu-nbd", "nbdkit")
    return Case(f"fio-{depth}", f"fio, 4 KiB random reads at depth {depth}", [
        Contender("penstock", fio("penstock", depth), ("fio",)),
        *[Contender(kind, fio(kind, depth), ("fio", kind)) for kind in kinds],
        Contender("minimal server", fio("minimal", depth), ("fio",), True),
    ], [Goal(f"IOPS at depth {depth}, by {kind}", "penstock", kind, "iops", at_least=goals,
             more_is_better=True) for kind in kinds if goals] + [
        Goal(f"IOPS at depth {depth}, by the minimal server (limit)", "penstock", "minimal server",
             "iops", at_least=0.9, more_is_better=True)], prepare_random)


# ---- extents ----

def prepare_one_byte(place):
    def make(path):
        with open(path, "wb") as file:
            file.truncate(2 << 40)
            file.seek(1 << 40)
            file.write(b"x")
    place.file("2t", make, place.disk)
    return place


def copy_2t(place):
    target = os.path.join(place.disk, "2t.out")
    sample, _ = measure.run([PS, "copy", os.path.join(place.disk, "2t"), target])
    os.unlink(target)
    return sample


COPY_2T = Case("copy-2t", "copying 2 TiB with one byte of data", [
    Contender("penstock copy", copy_2t),
], [Goal("2 TiB with one byte, seconds", "penstock copy", None, at_most=1.0)], prepare_one_byte,
    ("2t", "2t.out"))


def prepare_extents(place):
    for n in (10000, 100000):
        place.file(f"extents{n}", lambda path, n=n: subprocess.run(
            [os.path.join(MINIMAL, "extents"), path, str(n)], check=True))
    return place


def an_extent(n, *argv):
    def run(place):
        sample, _ = measure.run([a(place) if callable(a) else a for a in argv])
        return {"wall": sample["wall"] / n}
    return run


def extents_case(what, argv):
    return Case(f"{what}-extents", f"{what} of files with many extents, seconds an extent", [
        Contender(f"{n} extents", an_extent(n, PS, what, in_memory(f"extents{n}"), *argv))
        for n in (10000, 100000)
    ], [Goal(f"{what}: an extent of 100,000 to one of 10,000", "100000 extents", "10000 extents",
             at_most=1.1)], prepare_extents)


# ---- saved state ----

HELPER = "/usr/lib/libvirt/libvirt_iohelper"


def state_pipe(name, command, folder="memory", out="state"):
    """A producer of random bytes through a pipe; {f} is the file, {r} the random one."""
    def run(place):
        where = os.path.join(place.memory if folder == "memory" else place.disk, out)
        place.drop(out)
        text = command.format(f=where, r=place.random(), ps=PS, helper=HELPER,
                              producer=f"cat {place.random()}")
        return measure.run(["/bin/bash", "-o", "pipefail", "-c", text])[0]
    return Contender(name, run)


def save_case(name, about, folder, peers, goals):
    return Case(name, about, [state_pipe(*peer[:2], folder) if len(peer) == 2 else
                              Contender(state_pipe(*peer[:2], folder).name,
                                        state_pipe(*peer[:2], folder).run, peer[2])
                              for peer in peers], goals, prepare_random, ("state",))


SAVE_TMPFS = save_case("save-tmpfs", "a stream into a new file in memory", "memory", [
    ("penstock save", "{producer} | {ps} save {f}"),
    ("libvirt_iohelper, 64 KiB pipe", "{producer} | {helper} x 1 > {f}", ("libvirt_iohelper",)),
    ("cat", "{producer} | cat > {f}"),
    ("mbuffer", "{producer} | mbuffer -q -m 16M -o {f}", ("mbuffer",)),
    ("pv", "{producer} | pv -q > {f}", ("pv",)),
    ("dd", "{producer} | dd bs=1M iflag=fullblock oflag=direct of={f} status=none"),
], [
    Goal("save in memory, by libvirt_iohelper with a 64 KiB pipe", "penstock save",
         "libvirt_iohelper, 64 KiB pipe", at_least=2.0),
    Goal("save in memory, by mbuffer", "penstock save", "mbuffer", at_least=1.0),
    Goal("save in memory, by pv", "penstock save", "pv", at_least=1.0),
    Goal("save in memory, by dd", "penstock save", "dd", at_least=1.0),
])

SAVE_DISK = save_case("save-disk", "a stream onto a disk, page cache bypassed, durable", "disk", [
    ("penstock save --direct", "{producer} | {ps} save --direct {f}"),
    ("libvirt_iohelper, O_DIRECT",
     "touch {f}; {producer} | python3 -c \"import os,sys; os.dup2(os.open('{f}', "
     "os.O_WRONLY|os.O_DIRECT), 1); os.execv('{helper}', ['{helper}', 'x', '1'])\"",
     ("libvirt_iohelper",)),
    ("dd", "{producer} | dd bs=1M iflag=fullblock oflag=direct conv=fdatasync of={f} status=none"),
], [
    Goal("save on a disk, by libvirt_iohelper with O_DIRECT", "penstock save --direct",
         "libvirt_iohelper, O_DIRECT", at_least=1.5),
    Goal("save on a disk, by dd", "penstock save --direct", "dd", at_least=1.0),
])

RESTORE = save_case("restore", "a file in memory to a reader", "memory", [
    ("penstock restore", "{ps} restore {r} | cat > /dev/null"),
    ("libvirt_iohelper", "{helper} x 0 < {r} | cat > /dev/null", ("libvirt_iohelper",)),
    ("cat", "cat {r} | cat > /dev/null"),
], [Goal("restore, by libvirt_iohelper", "penstock restore", "libvirt_iohelper", at_least=1.7)])


def prepare_text(place):
    def make(path):
        line = b"2026-12-01 kernel: page %d is dirty, size=4096\n"
        with open(path, "wb") as file:
            for n in range(0, place.size // 4 // 1024 // 1024):
                file.write((b"".join(line % (n * 77777 + k * k) for k in range(25000)) +
                            os.urandom(1 << 17))[:1 << 20].ljust(1 << 20, b"\0"))
    place.file("text", make)
    place.random()
    return place


def compress_case():
    def piped(name, command, tools=()):
        def run(place):
            where = os.path.join(place.memory, "state")
            place.drop("state")
            text = command.format(f=where, t=os.path.join(place.memory, "text"), ps=PS)
            return measure.run(["/bin/bash", "-o", "pipefail", "-c", text])[0]
        return Contender(name, run, tools)
    return Case("save-zstd", "a stream compressed with zstd -1 into memory", [
        piped("penstock save", "cat {t} | {ps} save --compress=zstd:1 {f}"),
        piped("zstd -1", "cat {t} | zstd -q -1 -c --single-thread > {f}", ("zstd",)),
        piped("zstd -1 -T0", "cat {t} | zstd -q -1 -T0 -c > {f}", ("zstd",)),
    ], [Goal("save --compress=zstd:1, by zstd -1", "penstock save", "zstd -1", at_least=1.6)],
        prepare_text, ("state", "text"))


SAVE_START = Case("save-start", "an empty stream: the whole process", [
    Contender("penstock save", many(50, PS, "save", in_memory("empty"))),
    Contender("libvirt_iohelper",
              many(10, "/bin/bash", "-c", f"{HELPER} x 1 > /dev/null < /dev/null"),
              ("libvirt_iohelper",)),
], [Goal("save of nothing, seconds a process", "penstock save", None, at_most=0.010)],
    lambda place: place, ("empty",))

ALL = [
    QEMU_IMG_READ, NBDCOPY_READ, COPY_NULL,
    write_case("write-tmpfs", "writing a file in memory through a server", "memory"),
    write_case("write-disk", "writing a file on a disk through a server, flushed", "disk"),
    SUM_FILE, SUM_SPARSE, SUM_NBD, SUM_HOLE, SUM_SMALL,
    *[fio_case(depth) for depth in (1, 4, 16, 32)],
    COPY_2T, extents_case("map", []), extents_case("copy", ["null:"]),
    SAVE_TMPFS, SAVE_DISK, RESTORE, compress_case(), SAVE_START,
]
