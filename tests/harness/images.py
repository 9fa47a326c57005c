"""
Disk images for tests: the same bytes for the same seed, made fast, never random by the clock.
"""

import os
import random

CHUNK = 1 << 20


def random_bytes(length, seed=1):
    """Bytes that no compression or zero detection can help with."""
    return random.Random(seed).randbytes(length)


def random_chunk(offset, length, seed=1):
    """What image_random(…, seed=seed) has at offset (both multiples of a MiB)."""
    assert offset % CHUNK == 0 and length % CHUNK == 0
    return b"".join(random_bytes(CHUNK, (seed << 32) + n)
                    for n in range(offset // CHUNK, (offset + length) // CHUNK))


def image_random(path, size, seed=1):
    """A file of random bytes, a MiB of them from each (seed, number of the MiB)."""
    with open(path, "wb") as file:
        for n in range((size + CHUNK - 1) // CHUNK):
            file.write(random_bytes(min(CHUNK, size - n * CHUNK), (seed << 32) + n))
    return path


def image_sparse(path, size, seed=1, data=1 << 16, every=1 << 20):
    """A file with `data` random bytes at every multiple of `every`, holes between them."""
    with open(path, "wb") as file:
        for n, offset in enumerate(range(0, size, every)):
            file.seek(offset)
            file.write(random_bytes(min(data, size - offset), (seed << 32) + n))
        file.truncate(size)
    return path


def image_odd(path, size=(3 << 20) + 12345, seed=1):
    """
    A file with everything at odd places: a size that is no multiple of anything, data that ends
    within a sector, written zeroes, a hole at its end.
    """
    with open(path, "wb") as file:
        file.write(random_bytes(100001, seed))
        file.seek((1 << 20) + 513)
        file.write(random_bytes(70000, seed + 1))
        file.write(bytes(200000))
        file.write(random_bytes(1, seed + 2))
        file.seek((2 << 20) - 1)
        file.write(random_bytes(4099, seed + 3))
        file.truncate(size)
    return path


def compare_files(a, b):
    """Fails at the first byte in which two files differ."""
    assert os.path.getsize(a) == os.path.getsize(b), \
        f"{a} has {os.path.getsize(a)} bytes, {b} has {os.path.getsize(b)}"
    with open(a, "rb") as one, open(b, "rb") as two:
        offset = 0
        while True:
            left = one.read(CHUNK)
            right = two.read(CHUNK)
            if left != right:
                at = next(i for i, pair in enumerate(zip(left, right)) if pair[0] != pair[1])
                raise AssertionError(f"{a} and {b} differ at byte {offset + at}")
            if not left:
                return
            offset += len(left)
