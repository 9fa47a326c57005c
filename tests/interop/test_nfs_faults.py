"""
The NFS driver against a server that lies: a table of lies and what must come of each. A wrong
answer is never taken; a lost connection is made anew and what was not answered is asked again.
"""

import signal

import nbd
import pytest

from harness import PENSTOCK, Server, random_bytes, run, start
from harness import lyingnfs as nfs
from harness.lyingnfs import (COMMIT, CREATE, FSINFO, GETATTR, HONEST, LOOKUP, MNT, READ, SETATTR,
                              WRITE, LyingNfs, u32)
from harness.nfs import requires_libnfs

SIZE = (1 << 20) + 5
CONTENT = random_bytes(SIZE, seed=11)

FOREVER = {"request_timeout": 86400}
MANY = 12  # clients
PATIENCE = 2  # seconds in which a busy machine answers a call for sure
GIVES_UP = {"reconnect_delay": 0.2}


@pytest.fixture(autouse=True, scope="module")
def _built_in():
    requires_libnfs()


def first(count, lie):
    """Lies in the first calls, then is honest."""
    return lambda call: lie(call) if call.number < count else HONEST


def honest(call):
    call.server.answer(call)


def half_of_a_read(call):
    """A short read in the middle of the file; the shortest is one byte."""
    data = call.server.content("disk")[call.offset:call.offset + max(1, call.length // 2)]
    call.read_reply(data, eof=call.offset + len(data) == SIZE)


def read_and_more(call):
    honest(call)
    honest(call)


def other_xid(call):
    """The answer to a call that nobody made, and the right one."""
    call.record(u32(call.xid ^ 0x55555555, 1, 0, 0, 0, 0))
    honest(call)


def truncated(call):
    call.record(u32(call.xid, 1, 0, 0, 0, 0, 0, 0, 64))


def half_a_record(call):
    call.connection.send(u32(0x80000000 | 4096) + bytes(100))
    call.drop()


# name: (hook for READ, the exit code, words of the message, URL options)
READ_LIES = {
    "short": (half_of_a_read, 0, "", {}),
    "more": (lambda c: c.read_reply(bytes(c.length + 4)), 1, "more than was asked for", {}),
    "count-high": (lambda c: c.read_reply(bytes(c.length), c.length + 1), 1, "another number", {}),
    "count-low": (lambda c: c.read_reply(bytes(c.length), c.length - 1), 1, "another number", {}),
    "count-only": (lambda c: c.read_reply(b"", c.length), 1, "another number", {}),
    "nothing": (lambda c: c.read_reply(b""), 1, "sends nothing", {}),
    "end": (lambda c: c.read_reply(b"", eof=True), 1, "the file ends here", {}),
    "short-end": (lambda c: c.read_reply(bytes(7), eof=True), 1, "the file ends here", {}),
    "io": (lambda c: c.status(nfs.IO), 1, "NFS3ERR_IO", {}),
    "stale": (lambda c: c.status(nfs.STALE), 1, "NFS3ERR_STALE", {}),
    "acces": (lambda c: c.status(nfs.ACCES), 1, "NFS3ERR_ACCES", {}),
    "status": (lambda c: c.status(4711), 1, "unknown status, 4711", {}),
    "later": (first(2, lambda c: c.status(nfs.JUKEBOX)), 0, "", {}),
    "never": (lambda c: c.status(nfs.JUKEBOX), 1, "NFS3ERR_JUKEBOX", GIVES_UP),
    "drop": (first(1, lambda c: c.drop()), 0, "", {}),
    "drops": (first(3, lambda c: c.drop()), 0, "", {}),
    "drop-always": (lambda c: c.drop(), 1, "the server was away", GIVES_UP),
    "cut": (first(1, half_a_record), 0, "", {}),
    "silent": (first(1, lambda c: c.silence()), 0, "", {"request_timeout": PATIENCE}),
    "silent-always": (lambda c: c.silence(), 1, "no answer to a READ",
                      {"request_timeout": PATIENCE, "reconnect_delay": 0}),
    "denied": (lambda c: c.record(u32(c.xid, 1, 1, 1, 5)), 1, "refuses the call", {}),
    "mismatch": (lambda c: c.record(u32(c.xid, 1, 1, 0, 3, 3)), 1, "refuses the call", {}),
    "no-program": (lambda c: c.record(u32(c.xid, 1, 0, 0, 0, 1)), 1, "refuses the call", {}),
    "garbage-args": (lambda c: c.record(u32(c.xid, 1, 0, 0, 0, 4)), 1, "refuses the call", {}),
    "truncated": (truncated, 1, "makes no sense", {}),
    "empty-result": (lambda c: c.reply(), 1, "makes no sense", {}),
    "huge-length": (lambda c: c.reply(u32(0, 0, 0xffffffff, 0, 0xffffffff)), 1, "READ", {}),
    "twice": (read_and_more, 0, "", {}),
    "other-xid": (other_xid, 0, "", {}),
    "huge-record": (lambda c: c.connection.send(u32(0xffffffff) + bytes(4096)), 1,
                    "the server was away", GIVES_UP),
}


@pytest.mark.parametrize("lie", READ_LIES)
def test_read(lie, tmp_path):
    hook, status, words, options = READ_LIES[lie]
    with LyingNfs({"disk": CONTENT}, {READ: hook}) as server:
        err = run("penstock", "copy", server.url("disk", **options), tmp_path / "out",
                  status=status).err
        assert words in err, err
    if status == 0:
        assert (tmp_path / "out").read_bytes() == CONTENT


def half_of_a_write(call):
    count = max(1, call.length // 2)
    call.server.write(call.handle, call.offset, call.data[:count])
    call.write_reply(count)


def stores(lie):
    """The data is taken, and the answer is a lie."""
    def hook(call):
        call.store()
        return lie(call)
    return hook


def restarted(call):
    """From its second write on it is another server."""
    call.store()
    call.write_reply(verifier=b"restarts" if call.number > 0 else None)


# name: (hooks, the exit code, words of the message, URL options)
WRITE_LIES = {
    "short": ({WRITE: half_of_a_write}, 0, "", {}),
    "more": ({WRITE: stores(lambda c: c.write_reply(c.length + 1))}, 1, "more than it was sent",
             {}),
    "nothing": ({WRITE: lambda c: c.write_reply(0)}, 1, "wrote nothing", {}),
    "committed": ({WRITE: lambda c: c.write_reply(committed=7)}, 1, "how safe", {}),
    "synced": ({WRITE: stores(lambda c: c.write_reply(committed=nfs.FILE_SYNC))}, 0, "", {}),
    "data-synced": ({WRITE: stores(lambda c: c.write_reply(committed=nfs.DATA_SYNC))}, 0, "", {}),
    "restarted": ({WRITE: restarted}, 1, "write verifier has changed", {}),
    "lost": ({COMMIT: lambda c: c.commit_reply(b"restarts")}, 1, "write verifier has changed", {}),
    "commit-io": ({COMMIT: lambda c: c.status(nfs.IO)}, 1, "NFS3ERR_IO", {}),
    "full": ({WRITE: lambda c: c.status(nfs.NOSPC)}, 1, "No space left on device", {}),
    "quota": ({WRITE: lambda c: c.status(nfs.DQUOT)}, 1, "quota", {}),
    "large": ({WRITE: lambda c: c.status(nfs.FBIG)}, 1, "NFS3ERR_FBIG", {}),
    "read-only": ({WRITE: lambda c: c.status(nfs.ROFS)}, 1, "read-only", {}),
    "drop": ({WRITE: first(1, stores(lambda c: c.drop()))}, 0, "", {}),
    "drop-commit": ({COMMIT: first(1, lambda c: c.drop())}, 0, "", {}),
    "drop-commits": ({COMMIT: lambda c: c.drop()}, 1, "the server was away", GIVES_UP),
    "later": ({WRITE: first(2, lambda c: c.status(nfs.JUKEBOX)),
               COMMIT: first(1, lambda c: c.status(nfs.JUKEBOX))}, 0, "", {}),
    "size": ({SETATTR: lambda c: c.reply(u32(0, 0, 0))}, 1, "was to make it", {}),
    "no-size": ({SETATTR: lambda c: c.status(nfs.NOSPC)}, 1, "No space left on device", {}),
    "no-create": ({CREATE: lambda c: c.status(nfs.ACCES)}, 1, "NFS3ERR_ACCES", {}),
    "no-handle": ({CREATE: lambda c: (c.server.files.update({c.name: bytearray()}),
                                      c.reply(u32(0, 0, 0, 0, 0)))}, 0, "", {}),
}


@pytest.mark.parametrize("lie", WRITE_LIES)
def test_write(lie, tmp_path):
    hooks, status, words, options = WRITE_LIES[lie]
    (tmp_path / "in").write_bytes(CONTENT)
    with LyingNfs({}, hooks) as server:
        err = run("penstock", "copy", tmp_path / "in", server.url("new", **options),
                  status=status).err
        assert words in err, err
        if status == 0:
            assert server.content("new") == CONTENT


def attributes(kind, size):
    return lambda call: call.reply(u32(0), call.attributes(kind, size))


# name: (hooks, words of the message)
OPEN_LIES = {
    "no-folder": ({MNT: lambda c: c.status(nfs.NOENT)}, "cannot mount /export"),
    "no-right": ({MNT: lambda c: c.status(nfs.ACCES)}, "does not allow it"),
    "mount-drop": ({MNT: lambda c: c.drop()}, "connection was lost"),
    "mount-handle": ({MNT: lambda c: c.reply(u32(0, 0, 1, 1))}, "handle is not valid"),
    "no-file": ({LOOKUP: lambda c: c.status(nfs.NOENT)}, "no such file"),
    "empty-handle": ({LOOKUP: lambda c: c.reply(u32(0, 0, 0, 0))}, "handle is not valid"),
    "long-handle": ({LOOKUP: lambda c: c.reply(u32(0), nfs.opaque(bytes(68)), u32(0, 0))},
                    "handle is not valid"),
    "folder": ({GETATTR: attributes(nfs.FOLDER, 4096)}, "it is a directory"),
    "link": ({GETATTR: attributes(nfs.LINK, 10)}, "symbolic link"),
    "device": ({GETATTR: attributes(3, 0)}, "no regular file"),
    "too-large": ({GETATTR: attributes(nfs.REGULAR, 1 << 63)}, "9223372036854775808"),
    "no-facts": ({FSINFO: lambda c: c.status(nfs.IO)}, "NFS3ERR_IO"),
    "no-rtmax": ({FSINFO: lambda c: c.reply(u32(0, 0, 0, 0, 1, 0, 0, 1, 4096), nfs.u64(1 << 62),
                                            u32(0, 1, 0x1b))}, "rtmax or wtmax is 0"),
    "lookup-cut": ({LOOKUP: lambda c: c.reply(u32(0, 8))}, "makes no sense"),
}


@pytest.mark.parametrize("lie", OPEN_LIES)
def test_open(lie):
    hooks, words = OPEN_LIES[lie]
    with LyingNfs({"disk": CONTENT}, hooks) as server:
        err = run("penstock", "info", server.url("disk"), status=1).err
        assert words in err, err


def test_parents_are_tried():
    """A folder that is not exported by itself is looked up below the one that is."""
    with LyingNfs({"disk": CONTENT, "sub": b""}) as server:
        url = server.url("sub/disk")
        out = run("penstock", "info", url).out
        assert str(SIZE) in out, out
        assert [call.name for call in server.calls(MNT)] == [b"/export/sub", b"/export"]
        err = run("penstock", "info", url + "&auto-traverse-mounts=0", status=1).err
        assert "cannot mount /export/sub" in err, err


def test_small_requests(tmp_path):
    """rtmax and wtmax cut requests."""
    (tmp_path / "in").write_bytes(CONTENT)
    with LyingNfs({}, read_max=65536, write_max=32768) as server:
        run("penstock", "copy", tmp_path / "in", server.url("new"))
        run("penstock", "copy", server.url("new"), tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == CONTENT
        assert max(call.length for call in server.calls(WRITE)) == 32768
        assert max(call.length for call in server.calls(READ)) == 65536


def test_existing_target_is_refused_as_image(tmp_path):
    """What starts like a qcow2 is not written to as if it were raw."""
    (tmp_path / "in").write_bytes(CONTENT)
    with LyingNfs({"old": b"QFI\xfb" + bytes(SIZE - 4)}) as server:
        err = run("penstock", "copy", tmp_path / "in", server.url("old"), status=1).err
        assert "qcow" in err and not server.calls(WRITE), err


@pytest.mark.parametrize("what", [READ, WRITE])
def test_sigterm_while_it_waits(what, tmp_path):
    """A copy that waits for an answer ends when it is told to."""
    (tmp_path / "in").write_bytes(CONTENT)
    with LyingNfs({"disk": CONTENT}, {what: lambda c: c.silence()}) as server:
        url = server.url("disk" if what == READ else "new", **FOREVER)
        ends = [url, tmp_path / "out"] if what == READ else [tmp_path / "in", url]
        program = start(PENSTOCK, "copy", *ends)
        server.wait_for(what)
        program.kill(signal.SIGTERM)
        assert program.wait() != 0


def test_sigterm_while_it_connects_again(tmp_path):
    with LyingNfs({"disk": CONTENT}, {READ: lambda c: c.drop()}) as server:
        program = start(PENSTOCK, "copy", server.url("disk", reconnect_delay=86400),
                        tmp_path / "out")
        server.wait_for(READ)
        program.kill(signal.SIGTERM)
        assert program.wait() != 0


def connect(served):
    handle = nbd.NBD()
    handle.connect_uri(served.uri())
    return handle


def test_fua_and_sticky_flush():
    """FUA is FILE_SYNC; once a flush has lost data no later one succeeds."""
    with LyingNfs({"disk": CONTENT}) as peer, Server(peer.url("disk")) as served:
        handle = connect(served)
        handle.pwrite(b"a" * 4096, 0, nbd.CMD_FLAG_FUA)
        assert [call.stable for call in peer.calls(WRITE)] == [nfs.FILE_SYNC]
        handle.flush()
        assert not peer.calls(COMMIT)  # nothing to commit
        handle.pwrite(b"b" * 512, 4096)
        assert peer.calls(WRITE)[-1].stable == nfs.UNSTABLE
        handle.flush()
        assert len(peer.calls(COMMIT)) == 1
        handle.pwrite(b"c" * 512, 8192)
        peer.verifier = b"restarts"
        for _ in range(2):
            with pytest.raises(nbd.Error) as caught:
                handle.flush()
            assert caught.value.errno == "EIO"
        assert handle.pread(512, 8192) == b"c" * 512
        handle.shutdown()
        served.stop(status=1)  # it says at its end, too, that data may be lost


def test_fua_that_is_not():
    def lazy(call):
        call.store()
        call.write_reply(committed=nfs.UNSTABLE)

    with LyingNfs({"disk": CONTENT}, {WRITE: lazy}) as peer, \
            Server(peer.url("disk")) as served:
        handle = connect(served)
        with pytest.raises(nbd.Error):
            handle.pwrite(b"a" * 4096, 0, nbd.CMD_FLAG_FUA)
        handle.shutdown()


@pytest.mark.threaded
def test_connections():
    """Clients on several workers share the connections that there may be."""
    with LyingNfs({"disk": bytes(MANY * 8192)}) as peer, \
            Server("--workers", "4", peer.url("disk", connections=2)) as served:
        handles = [connect(served) for _ in range(MANY)]
        for i, handle in enumerate(handles):
            handle.pwrite(bytes([i + 1]) * 8192, i * 8192)
        for handle in handles:
            handle.flush()
        for i, handle in enumerate(handles):
            assert handle.pread(8192, (MANY - 1 - i) * 8192) == bytes([MANY - i]) * 8192
            handle.shutdown()
        assert 1 <= len({call.connection for call in peer.calls(WRITE)}) <= 2


@pytest.mark.threaded
def test_sigterm_while_other_workers_wait():
    """A call by way of another worker's connection is canceled, too."""
    with LyingNfs({"disk": bytes(8 << 20)}, {READ: lambda c: c.silence()}) as server:
        program = start(PENSTOCK, "sum", "--workers", "3",
                        server.url("disk", connections=1, **FOREVER))
        server.wait_for(READ)
        program.kill(signal.SIGTERM)
        assert program.wait() != 0
