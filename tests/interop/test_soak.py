"""
24 clients at once on one server, each with a model of what its blocks must hold: random reads,
writes, zeroes, trims and flushes, several in flight a client. PENSTOCK_SOAK_SECONDS
(default 10) says for how long. No wrong byte, no leak of descriptors, flat memory, and
what a client has left is there for the next.

Block b belongs to client b % CLIENTS; only its owner writes it, so the owner knows what it holds.
A read covers blocks of others too, as a real one would. NBD does not say what a read sees of a
write that is under way, so of those it checks that each word is zero or belongs to that very place.
"""

import os
import random
import struct
import threading
import time

import nbd
import pytest

from harness import Server, wait_until

CLIENTS = 24
BLOCK = 4096
SECTOR = 512
OWN_BLOCKS = 64
BLOCKS = CLIENTS * OWN_BLOCKS
IN_FLIGHT = 6
SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "10"))
SANITIZED = float(os.environ.get("PENSTOCK_TIME_FACTOR", "1")) > 1

STAMP = struct.Struct("<QQQQ")
MAGIC = 0x70656E73746F636B


def sector_of(block, sector, version):
    return STAMP.pack(MAGIC, block, sector, version) * (SECTOR // STAMP.size)


def content(block, version):
    """What a block holds after its version'th write; version 0: zeroes."""
    if version == 0:
        return bytes(BLOCK)
    return b"".join(sector_of(block, sector, version) for sector in range(BLOCK // SECTOR))


def check_foreign(block, data):
    for n, (magic, its_block, sector, _) in enumerate(STAMP.iter_unpack(data)):
        at = n * STAMP.size // SECTOR
        assert magic in (0, MAGIC) and its_block in (0, block) and sector in (0, at), \
            f"block {block}, sector {at} has foreign bytes: {magic:x} {its_block} {sector}"


def check_own(block, version, data):
    """version None: it was trimmed, and holds zeroes or what it held."""
    if version is None:
        check_foreign(block, data)
    else:
        assert data == content(block, version), \
            f"block {block} is not version {version}: {bytes(data[:64]).hex()}"


class Client:
    """One connection, its blocks and what they hold."""

    def __init__(self, number, uri, alone=False):
        self.number = number
        self.kinds = (5, 2, 1, 4, 0 if alone else 2)
        self.random = random.Random(number)
        self.versions = {number + CLIENTS * n: 0 for n in range(OWN_BLOCKS)}
        self.written = 0
        self.operations = 0
        self.error = None
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri)

    def submit(self, block):
        """Starts a random operation on an own block; (cookie, what to do when it is done)."""
        handle = self.handle
        offset = block * BLOCK
        kind = self.random.choices(("write", "zero", "trim", "read", "wide"), self.kinds)[0]
        if kind == "write":
            self.written += 1
            version = self.written
            buffer = nbd.Buffer.from_bytearray(bytearray(content(block, version)))
            flags = nbd.CMD_FLAG_FUA if self.random.random() < 0.05 else 0
            self.versions[block] = version
            return handle.aio_pwrite(buffer, offset, flags=flags), None
        if kind == "zero":
            self.versions[block] = 0
            flags = nbd.CMD_FLAG_NO_HOLE if self.random.random() < 0.5 else 0
            return handle.aio_zero(BLOCK, offset, flags=flags), None
        if kind == "trim":
            self.versions[block] = None
            return handle.aio_trim(BLOCK, offset), None
        first, count = block, 1
        if kind == "wide":
            first = max(0, block - self.random.randrange(CLIENTS))
            count = min(BLOCKS - first, block - first + 1 + self.random.randrange(CLIENTS))
        buffer = nbd.Buffer(count * BLOCK)
        expected = self.versions[block]

        def check():
            data = buffer.to_bytearray()
            for n in range(count):
                part = data[n * BLOCK:(n + 1) * BLOCK]
                if first + n == block:
                    check_own(block, expected, part)
                elif (first + n) not in self.versions:
                    check_foreign(first + n, part)

        return handle.aio_pread(buffer, first * BLOCK), check

    def step(self):
        blocks = self.random.sample(list(self.versions), self.random.randint(1, IN_FLIGHT))
        running = [self.submit(block) for block in blocks]
        while running:
            left = []
            for cookie, check in running:
                if self.handle.aio_command_completed(cookie):
                    self.operations += 1
                    if check:
                        check()
                else:
                    left.append((cookie, check))
            running = left
            if running:
                self.handle.poll(-1)
        if self.random.random() < 0.02:
            self.handle.flush()

    def work(self, until, samples, server):
        try:
            while time.monotonic() < until:
                self.step()
                if self.number == 0 and self.operations % 50 < IN_FLIGHT:
                    samples.append((time.monotonic(), server.memory_kib()))
            self.handle.flush()
            self.handle.shutdown()
        except Exception as error:  # pylint: disable=broad-except # told by the test itself
            self.error = error

    def verify(self, uri):
        """All blocks once more, through a connection of its own."""
        handle = nbd.NBD()
        handle.connect_uri(uri)
        for block, version in self.versions.items():
            check_own(block, version, handle.pread(BLOCK, block * BLOCK))
        handle.shutdown()


@pytest.mark.threaded
@pytest.mark.limit(SECONDS * 2 + 120)
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_soak(tmp_path, kind):
    seconds = SECONDS / 2
    if kind == "file":
        disk = tmp_path / "disk"
        with open(disk, "wb") as file:
            file.truncate(BLOCKS * BLOCK)
    else:
        disk = f"memory:{BLOCKS * BLOCK}"
    with Server(disk) as server:
        before = server.descriptors()

        # Clients that read what another writes at that moment are a data race of theirs, which TSan
        # rightly sees where a disk is memory.
        alone = SANITIZED and kind == "memory"
        clients = [Client(number, server.uri(), alone) for number in range(CLIENTS)]
        samples = []
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=client.work, args=(until, samples, server))
                   for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            if client.error:
                raise AssertionError(f"client {client.number}: {client.error}") from client.error
        print(f"{kind}: {sum(client.operations for client in clients)} operations")

        wait_until(lambda: server.descriptors() <= before, what="descriptors come back")
        for client in clients:
            client.verify(server.uri())
        check_memory(samples, until - seconds, seconds)
    if kind == "file":
        with open(disk, "rb") as file:
            for client in clients:
                for block, version in client.versions.items():
                    file.seek(block * BLOCK)
                    check_own(block, version, file.read(BLOCK))


def check_memory(samples, begin, seconds):
    """The highest of the last third is about the highest of the second."""
    if SANITIZED or seconds < 3:
        return  # sanitizers keep freed memory; a short run is all warming up
    second = [kib for at, kib in samples if seconds / 3 <= at - begin < seconds * 2 / 3]
    last = [kib for at, kib in samples if at - begin >= seconds * 2 / 3]
    if second and last:
        assert max(last) <= max(second) * 1.25 + 8192, f"memory grows: {second}, {last} KiB"
