"""--reconnect: servers that go away and come back, some of them changed, some for good."""

import os
import struct

import pytest
from harness import PENSTOCK, Nbdkit, random_bytes, run, start, wait_until
from harness import lyingnbd as nbd
from harness.lyingnbd import LyingServer

SIZE = 1 << 20
CONTENT = random_bytes(SIZE, seed=6)
SMALL = ("-r", "16K", "-d", "4", "-w", "2")


def unsteady(after, times, **options):
    """A server that hangs up after so many requests on each of its first connections."""
    count = {}

    def request(c, r, payload=b""):
        count[c.number] = count.get(c.number, 0) + 1
        if c.number < times and count[c.number] > after:
            c.hang_up()
        c.honest_request(r, payload)

    hooks = {nbd.READ: request, nbd.WRITE: request}
    return LyingServer(on_request=hooks, **options)


@pytest.mark.threaded
@pytest.mark.parametrize("flags", [0, nbd.MULTI_CONN])
@pytest.mark.parametrize("extended", [False, True])
def test_a_source_that_comes_back(tmp_path, flags, extended):
    with unsteady(9, 5, content=CONTENT, flags=nbd.HAS_FLAGS | flags, extended=extended) as peer:
        run("penstock", "copy", "--reconnect=60", *SMALL, peer.uri(), tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == CONTENT
        assert len(peer.ends()) >= 4


def test_without_the_option_it_fails(tmp_path):
    with unsteady(9, 5, content=CONTENT) as peer:
        err = run("penstock", "copy", *SMALL, peer.uri(), tmp_path / "out", status=1).err
        assert "closed the connection" in err


def test_a_server_that_shuts_down(tmp_path):
    """ESHUTDOWN is not the disk's answer but the server's: asked again, on another connection."""
    def read(c, r):
        if c.number == 0 and r.offset >= SIZE // 2:
            c.error(r, 108, b"going down")
            c.hang_up()
        c.honest_request(r, b"")
    with LyingServer(content=CONTENT, on_request={nbd.READ: read}) as peer:
        run("penstock", "copy", "--reconnect=60", *SMALL, peer.uri(), tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == CONTENT


def test_another_disk_comes_back(tmp_path):
    def go(c, data):
        c.info_export(nbd.OPT_GO, size=SIZE - 512 * min(c.number, 1))
        c.reply(nbd.OPT_GO, nbd.ACK)
        return True
    with unsteady(9, 1, content=CONTENT) as peer:
        peer.on_option = {nbd.OPT_GO: go}
        err = run("penstock", "copy", "--reconnect=60", *SMALL, peer.uri(), tmp_path / "out",
                  status=1).err
        assert f"{SIZE} bytes on one connection and {SIZE - 512} on the next" in err


def test_a_server_that_stays_away(tmp_path):
    def go(c, data):
        if c.number > 0:
            c.hang_up()
        return c.honest_go(nbd.OPT_GO)
    with unsteady(9, 1, content=CONTENT) as peer:
        peer.on_option = {nbd.OPT_GO: go}
        err = run("penstock", "copy", "--reconnect=0.3", *SMALL, peer.uri(), tmp_path / "out",
                  status=1).err
        assert "given up" in err


def test_lies_are_not_repeated(tmp_path):
    with LyingServer(content=CONTENT, on_request={nbd.READ: lambda c, r: c.simple(77)}) as peer:
        run("penstock", "copy", "--reconnect=60", peer.uri(), tmp_path / "out", status=1)
        assert len(peer.ends()) == 1


def test_writes_that_were_not_flushed(tmp_path):
    """The target may have lost them with its server: no success."""
    (tmp_path / "in").write_bytes(CONTENT)
    with unsteady(9, 2) as peer:
        err = run("penstock", "copy", "--reconnect=60", *SMALL, tmp_path / "in", peer.uri(),
                  status=1).err
        assert "had not been flushed" in err
        # who does not ask for stable storage gets what he asks for
        with unsteady(9, 2) as other:
            run("penstock", "copy", "--reconnect=60", "--flush=no", *SMALL, tmp_path / "in",
                other.uri())
            assert other.read(0, SIZE) == CONTENT


def test_nbdkit_is_killed_and_started_again(tmp_path):
    size = 8 << 20
    with Nbdkit("--filter=delay", "pattern", str(size), "rdelay=5ms") as peer:
        copy = start(PENSTOCK, "copy", "--reconnect=100", "-r", "64K", "-d", "1", "-w", "1",
                     peer.uri(), tmp_path / "out")
        wait_until(lambda: not copy.running() or (
            os.path.exists(tmp_path / "out") and os.stat(tmp_path / "out").st_blocks > 0),
            what="the first bytes")
        peer.kill()
        os.unlink(peer.socket)
        peer.program = start(*peer.argv())
        assert copy.wait() == 0, copy.describe()
    assert (tmp_path / "out").read_bytes() == b"".join(
        struct.pack(">Q", n) for n in range(0, size, 8))
