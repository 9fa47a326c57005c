"""
penstock sum: every vector of tests/data/blkhash-vectors.json (blksum computed them), from files,
pipes and NBD servers; lists that are checked; what goes wrong.
"""

import json
import os
import signal
import subprocess

import pytest
from harness import (PENSTOCK, Nbdkit, QemuNbd, Server, image_random, requires, run, start,
                     wait_until)

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
with open(os.path.join(DATA, "blkhash-vectors.json"), encoding="utf-8") as vectors_file:
    FACTS = json.load(vectors_file)

VECTORS = {v["name"]: v for v in FACTS["vectors"]}
TERABYTE = 1 << 40
SMALL = [name for name, v in VECTORS.items() if v["size"] <= 16 << 20]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder with the image of every vector."""
    requires("openssl", "dd")
    folder = tmp_path_factory.mktemp("vectors")
    script = "set -e\n"
    for name, vector in VECTORS.items():
        script += f"F='{folder / name}'\n" + "\n".join(vector["make"]) + "\n"
    subprocess.run(["bash", "-c", script], check=True, stdin=subprocess.DEVNULL)
    return folder


def want(name, digest="sha256", sector=False):
    vector = VECTORS[name]
    if sector:
        return vector.get("digests_padded_to_512", vector["digests"])[digest]
    return vector["digests"][digest]


def lines_of(names, digest="sha256", sector=False):
    return "".join(f"{want(name, digest, sector)}  {name}\n" for name in names)


@pytest.mark.parametrize("digest", ["sha256", "sha512", "sha1"])
def test_files(images, digest):
    # SHA-512 of a terabyte of hole takes seconds.
    names = [name for name, v in VECTORS.items() if digest == "sha256" or v["size"] < 1 << 33]
    result = run("penstock", "sum", "--digest", digest.upper(), *names, cwd=images)
    assert result.out == lines_of(names, digest)
    odd = [name for name in names if "digests_padded_to_512" in VECTORS[name]
           and VECTORS[name]["size"] < TERABYTE / 2] + ["random-4096"]
    result = run("penstock", "sum", "-d", digest, "--sector", *odd, cwd=images)
    assert result.out == lines_of(odd, digest, sector=True)


@pytest.mark.threaded
@pytest.mark.parametrize("engine", ["openssl", "avx2", "sha-ni", "unknown"])
@pytest.mark.parametrize("workers", [1, 3])
def test_engines_and_workers(images, engine, workers):
    result = run("penstock", "sum", "--workers", str(workers), *SMALL, cwd=images,
                 env={"PENSTOCK_DIGEST_ENGINE": engine})
    assert result.out == lines_of(SMALL)


def test_block_sizes(tmp_path):
    facts = FACTS["block_sizes"]
    disk = tmp_path / "disk"
    subprocess.run(["bash", "-c", "set -e\n" + "\n".join(facts["make"])], check=True,
                   env={**os.environ, "F": str(disk)}, stdin=subprocess.DEVNULL)
    for entry in facts["results"]:
        for digest in ("sha256", "sha512", "sha1"):
            result = run("penstock", "sum", "-d", digest, "--block-size", str(entry["block_size"]),
                         disk)
            assert result.out.split()[0] == entry["digests"][digest], entry["block_size"]


@pytest.mark.threaded
def test_pipes(images):
    for name in SMALL:
        with open(images / name, "rb") as file:
            data = file.read()
        # From a pipe, as it comes, and from a file that is standard input.
        reader, writer = os.pipe()
        program = start(PENSTOCK, "sum", "-", stdin=reader)
        os.close(reader)
        with open(writer, "wb") as pipe:
            pipe.write(data)
        assert program.wait() == 0, program.describe()
        assert program.out().decode() == f"{want(name)}  -\n", name
    for name in ("mix", "empty", "random-65537"):
        with open(images / name, "rb") as file:
            result = run("penstock", "sum", "--sector", "-", stdin=file)
        assert result.out == f"{want(name, sector=True)}  -\n"


def test_programs_and_their_names(images):
    requires("nbdkit")
    disk = images / "mix-tail"
    result = run("penstock", "sum", "[", "nbdkit", "file", disk, "]")
    assert result.out == f"{want('mix-tail')}  [ nbdkit file {disk} ]\n"


OVER_NBD = ["mix", "mix-tail", "random-131071", "sparse-4k", "random-65537", "random-10m",
            "empty", "last-byte", "hole-100g"]


@pytest.mark.threaded
def test_penstock_serve(images):
    for name in OVER_NBD:
        with Server(images / name) as server:
            result = run("penstock", "sum", server.uri())
            assert result.out == f"{want(name)}  {server.uri()}\n"


def test_nbdkit(images):
    for name in OVER_NBD:
        with Nbdkit("file", images / name) as peer:
            result = run("penstock", "sum", peer.uri())
            assert result.out.split()[0] == want(name), name


def test_qemu_nbd_pads_to_sectors(images):
    for name in OVER_NBD:
        with QemuNbd("-r", "-f", "raw", images / name) as peer:
            result = run("penstock", "sum", peer.uri())
            assert result.out.split()[0] == want(name, sector=True), name


def test_holes_are_not_read(images):
    # A read would fail; a million blocks of them are counted.
    result = run("penstock", "sum", "--json", f"fault:read-error=EIO:{images}/hole-100g")
    row = json.loads(result.out)[0]
    assert row["digest"] == want("hole-100g")
    assert row["size"] == row["zeros_skipped"] == VECTORS["hole-100g"]["size"]


def test_tags_and_json(images):
    result = run("penstock", "sum", "--tag", "-d", "SHA2-512", "one-byte-A", cwd=images)
    assert result.out == f"BLKHASH-SHA512 (one-byte-A) = {want('one-byte-A', 'sha512')}\n"
    result = run("penstock", "sum", "--tag", "--block-size", "4k", "empty", cwd=images)
    assert result.out == f"BLKHASH-SHA256:4096 (empty) = {want('empty')}\n"
    result = run("penstock", "sum", "--json", "one-byte-A", "missing", "mix", cwd=images, status=1)
    rows = json.loads(result.out)
    assert rows[0] == {
        "endpoint": "one-byte-A", "digest": want("one-byte-A"),
        "sector_digest": want("one-byte-A", sector=True), "algorithm": "sha256",
        "block_size": 65536, "size": 1, "zeros_skipped": 0}
    assert rows[1]["endpoint"] == "missing" and "No such file" in rows[1]["error"]
    assert rows[2]["digest"] == want("mix") and "sector_digest" not in rows[2]


def test_odd_names(tmp_path):
    name = "a\\b\nc"
    (tmp_path / name).write_bytes(b"A")
    line = f"\\{want('one-byte-A')}  a\\\\b\\nc\n"
    assert run("penstock", "sum", name, cwd=tmp_path).out == line
    result = run("penstock", "sum", "--check", "-", stdin=line.encode(), cwd=tmp_path)
    assert result.out == "a\\x5cb\\x0ac: OK\n" or result.out == "a\\b\\x0ac: OK\n"


def test_check(images, tmp_path):
    good = ["mix", "one-byte-A", "hole-1g"]
    listing = tmp_path / "SUMS"
    listing.write_text("# comment\n\n" + lines_of(good) + lines_of(["random-65537"], sector=True)
                       + f"BLKHASH-SHA512 (mix) = {want('mix', 'sha512')}\r\n"
                       + want("empty").upper() + " *empty")
    result = run("penstock", "sum", "--check", listing, cwd=images)
    assert result.out == (
        "mix: OK\none-byte-A: OK\nhole-1g: OK\n"
        "random-65537: OK (padded with zeros to a multiple of 512 bytes)\nmix: OK\nempty: OK\n")
    assert result.err == ""
    assert run("penstock", "sum", "--quiet", "-c", listing, cwd=images).out == ""

    # One is wrong, one is missing: the others are checked, and it fails.
    wrong = lines_of(["mix"]).replace("mix", "last-byte") + lines_of(["empty"]).replace(
        "empty", "missing") + lines_of(["empty"])
    result = run("penstock", "sum", "-c", "-", stdin=wrong.encode(), cwd=images, status=1)
    assert result.out == "last-byte: FAILED\nmissing: FAILED to open or read\nempty: OK\n"
    assert "1 of 3 checksums did not match" in result.err and "missing" in result.err
    rows = json.loads(run("penstock", "sum", "--json", "-c", "-", stdin=wrong.encode(), cwd=images,
                          status=1).out)
    assert [row["result"] for row in rows] == ["failed", "unreadable", "ok"]


@pytest.mark.parametrize("text", [
    "", "# nothing but words\n", "garbage\n", "af55  empty\n",
    "BLKHASH-SHA999 (empty) = af55\n", "BLKHASH-SHA256:3000 (empty) = af55\n",
    f"{FACTS['vectors'][0]['digests']['sha256']}  empty\ngarbage\n",
    f"{FACTS['vectors'][0]['digests']['sha256']}  [ touch started ]\n",
])
def test_lists_that_prove_nothing(images, text):
    result = run("penstock", "sum", "-c", "-", stdin=text.encode(), cwd=images, status=1)
    assert result.err
    assert not (images / "started").exists()


@pytest.mark.parametrize("arguments", [
    [], ["--block-size", "0", "x"], ["--block-size", "3000", "x"], ["--block-size", "32M", "x"],
    ["--block-size", "256", "x"], ["-d", "sha257", "x"], ["-d", "", "x"], ["--workers", "0", "x"],
    ["--check", "list", "x"], ["--json", "--tag", "x"], ["--progress=77", "x"], ["--nonsense"],
])
def test_wrong_command_lines(arguments):
    result = run("penstock", "sum", *arguments, status=2)
    assert result.out == "" and result.err.startswith("penstock sum: ")


def test_list_of_digests(images):
    names = run("penstock", "sum", "--list-digests").out.split()
    assert names == sorted(names) and {"sha256", "sha3-512", "blake2b512", "null"} <= set(names)
    for name in names:
        line = run("penstock", "sum", "-d", name, images / "one-byte-A").out
        assert line.endswith(f"  {images / 'one-byte-A'}\n")


def test_errors_name_the_place_and_print_no_digest(images):
    bad = f"fault:read-error=EIO@1M+1:{images}/random-10m"
    result = run("penstock", "sum", "--workers", "2", bad, images / "empty", status=1)
    assert result.out == f"{want('empty')}  {images / 'empty'}\n"
    assert "random-10m" in result.err and "at offset 1048576" in result.err
    assert "Input/output error" in result.err


def test_a_full_standard_output(images):
    with open("/dev/full", "wb") as full:
        result = run("penstock", "sum", images / "empty", stdout=full, status=1)
    assert "No space left" in result.err


def test_progress(images, tmp_path):
    reader, writer = os.pipe()
    program = start(PENSTOCK, "sum", f"--progress={writer}", images / "random-100m+512",
                    pass_fds=[writer])
    os.close(writer)
    with open(reader, encoding="ascii") as pipe:
        lines = pipe.read().split("\n")
    assert program.wait() == 0
    assert lines[-1] == "" and lines[-2] == "100/100"


@pytest.mark.threaded
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(tmp_path, number):
    disk = image_random(tmp_path / "disk", 4 << 20)
    reader, writer = os.pipe()
    for endpoint, stdin in ((f"fault:hold-read:{disk}", None), ("-", reader)):
        program = start(PENSTOCK, "sum", "--workers", "3", endpoint,
                        **({"stdin": stdin} if stdin is not None else {}))
        # What it waits for never comes; once it takes signals as a descriptor, none is lost.
        wait_until(lambda: signals_taken(program.pid), what="sum takes signals")
        program.kill(number)
        assert program.wait() == 1
        assert program.out() == b"" and b"interrupted" in program.err()
    os.close(reader)
    os.close(writer)


@pytest.mark.threaded
def test_a_server_that_dies(images):
    # Reads take for ever; whenever it is killed, there is no checksum.
    with Nbdkit("--filter=delay", "file", images / "random-10m", "rdelay=1000") as peer:
        program = start(PENSTOCK, "sum", peer.uri())
        wait_until(lambda: signals_taken(program.pid), what="sum runs")
        peer.kill()
        assert program.wait() == 1
        assert program.out() == b"" and peer.uri().encode() in program.err()


def signals_taken(pid):
    """Whether its main thread blocks SIGINT."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        mask = next(line for line in file if line.startswith("SigBlk"))
    return int(mask.split()[1], 16) & (1 << (signal.SIGINT - 1))


@pytest.mark.threaded
def test_leaves(images, tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes((images / "random-10m").read_bytes())
    old, new = tmp_path / "old.leaves", tmp_path / "new.leaves"
    line = run("penstock", "sum", "--leaves", old, "disk", cwd=tmp_path).out
    assert line == f"{want('random-10m')}  disk\n"
    assert os.path.getsize(old) == 4096 + 160 * 32
    new.write_bytes(old.read_bytes())

    with open(disk, "r+b") as file:
        file.seek(5000000)
        file.write(b"change")
        file.seek(0, os.SEEK_END)
        file.write(b"more")
    changed = run("penstock", "sum", "--leaves", new, "--changed", "5000000+6", disk).out
    assert changed == run("penstock", "sum", disk).out

    ranges = run("penstock", "compare", "--leaves", old, new, status=3).out
    assert ranges == "4980736+65536\n10485760+4\n"
    rows = json.loads(run("penstock", "compare", "--leaves", "--json", old, new, status=3).out)
    assert rows == {"ranges": [{"offset": 4980736, "length": 65536},
                               {"offset": 10485760, "length": 4}],
                    "result": "different", "bytes": 65540}
    assert run("penstock", "compare", "--leaves", old, old).out == "The disks are the same\n"

    # What compare prints is what --changed takes.
    assert run("penstock", "sum", "--leaves", old, "--changed", "@-", disk,
               stdin=ranges.encode()).out == changed
    assert old.read_bytes() == new.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["disk", "new.leaves", "old.leaves"]


def test_leaves_that_are_none(images, tmp_path):
    disk = images / "random-10m"
    leaves = tmp_path / "leaves"
    missing = run("penstock", "sum", "--leaves", leaves, "--changed", "0+0", disk, status=1)
    assert "leaves: open: No such file" in missing.err and missing.out == ""
    leaves.write_bytes(b"words")
    result = run("penstock", "sum", "--leaves", leaves, "--changed", "0+0", disk, status=1)
    assert "no file of leaves" in result.err
    run("penstock", "sum", "--leaves", leaves, disk)
    for arguments in (["-d", "sha512"], ["--block-size", "4k"], ["--changed", "1-2"]):
        run("penstock", "sum", "--leaves", leaves, "--changed", "0+0", *arguments, disk, status=1)
    run("penstock", "sum", "--leaves", leaves, "--changed", "0+0", "-d", "SHA256", disk)
    # A disk that can't be read to its end leaves the file as it was.
    before = leaves.read_bytes()
    run("penstock", "sum", "--leaves", leaves, f"fault:read-error=EIO@1M:{disk}", status=1)
    assert leaves.read_bytes() == before and os.listdir(tmp_path) == ["leaves"]
    run("penstock", "sum", "--leaves", leaves, disk, disk, status=2)
    run("penstock", "sum", "--changed", "0+0", disk, status=2)
