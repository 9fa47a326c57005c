"""
The client against a server that can lie: one test for each rule for clients (C) and for both (B)
of docs/nbd-checklist.md. The number in a test's name is the rule's.
"""

import json
import struct

import pytest
from harness import Failed, nbd_uri, random_bytes, run, wait_until
from harness import lyingnbd as nbd
from harness.lyingnbd import LyingServer

SIZE = 1 << 20
CONTENT = random_bytes(SIZE, seed=5)


def server(**options):
    options.setdefault("content", CONTENT)
    return LyingServer(**options)


def copy(tmp_path, peer, *args):
    """Copies the disk of a server that behaves; its content must arrive."""
    out = tmp_path / "out"
    run("penstock", "copy", *args, peer.uri(), out)
    data = out.read_bytes()
    assert data == peer.read(0, peer.size)
    assert not peer.pipelined, "an option came before the last one was answered"
    return data


def refused(tmp_path, peer, *words):
    """A copy that must fail, quickly and with these words. Returns what was said."""
    err = run("penstock", "copy", peer.uri(), tmp_path / "out", status=1).err
    for word in words:
        assert word in err, err
    assert "penstock: " in err
    return err


def write_to(tmp_path, peer, *args, data=CONTENT):
    source = tmp_path / "in"
    source.write_bytes(data)
    return run("penstock", "copy", *args, source, peer.uri())


# --- basics ---

def test_b1_offsets_up_to_8_eib(tmp_path):
    """Offsets beyond 2^62 arrive as they are: a sparse disk is copied by its block status."""
    size = (1 << 63) - 512
    last = (1 << 63) - 65536

    def status(c, r):
        if r.offset < last:
            length = min(r.length, last - r.offset)
            c.status(r, (length, 3))
        else:
            c.status(r, (r.length, 0))

    def read(c, r):
        c.data(r, r.offset, b"x" * r.length)

    with server(size=size, extended=True, context=True,
                on_request={nbd.STATUS: status, nbd.READ: read}) as peer:
        run("penstock", "copy", "-S", "0", peer.uri(), f"null:{size}")
        reads = peer.requests(nbd.READ)
        assert sum(r.length for r in reads) == size - last
        assert all(r.offset >= last for r in reads)


def test_b2_names_up_to_4096_bytes():
    with server() as peer:
        name = "n" * 4096
        run("penstock", "copy", peer.uri(name), "null:1M")
        assert any(name.encode() in event[2] for event in peer.log if event[0] == "option")
    err = run("penstock", "copy", nbd_uri("/nowhere", "n" * 4097), "null:1M", status=1).err
    assert "4096" in err


def test_b3_tcp(tmp_path):
    with server(tcp=True) as peer:
        copy(tmp_path, peer)


@pytest.mark.parametrize("piece", [1, 3])
def test_b5_bytes_in_small_pieces(tmp_path, piece):
    with server(size=20000, content=CONTENT[:20000], context=True, piece=piece) as peer:
        copy(tmp_path, peer)


# --- handshake ---

def test_c10_unknown_handshake_flags_are_ignored(tmp_path):
    with server(handshake_flags=0xff03) as peer:
        copy(tmp_path, peer)
        assert {event[1] for event in peer.log if event[0] == "flags"} == {3}


def test_c11_oldstyle(tmp_path):
    greeting = struct.pack(">QQQI", nbd.INIT_MAGIC, nbd.OLDSTYLE_MAGIC, SIZE, 1) + bytes(124)
    with server(greeting=greeting) as peer:
        refused(tmp_path, peer, "oldstyle")


def test_c11_no_nbd_at_all(tmp_path):
    with server(greeting=b"220 ready\r\n") as peer:
        refused(tmp_path, peer, "not an NBD server", "220 read")


def test_c14_no_zeroes_only_where_offered(tmp_path):
    unsup = {nbd.OPT_GO: lambda c, data: c.reply(nbd.OPT_GO, nbd.ERR_UNSUP)}
    with server(handshake_flags=1, on_option=unsup) as peer:
        copy(tmp_path, peer)
        assert {event[1] for event in peer.log if event[0] == "flags"} == {1}


def test_c22_one_option_at_a_time(tmp_path):
    with server(extended=True, context=True) as peer:
        copy(tmp_path, peer)
        assert nbd.OPT_EXTENDED in peer.options() and nbd.OPT_SET_META in peer.options()
        assert not peer.pipelined


def test_c23_reply_magic(tmp_path):
    with server(on_option={nbd.OPT_GO: lambda c, data: c.send(bytes(20))}) as peer:
        refused(tmp_path, peer, "GO", "magic")


def test_c23_reply_to_another_option(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_INFO, nbd.ACK)
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer, "GO", "option 6")


def test_c23_reply_of_4_gib(tmp_path):
    def go(c, data):
        c.send(struct.pack(">QIII", nbd.REPLY_MAGIC, nbd.OPT_GO, nbd.INFO, 0xffffffff))
        c.silence()
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer, "4294967295 bytes")


def test_c24_the_text_of_an_error_is_shown_escaped(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ERR_POLICY, b"not \x1b[31myou\n")
    with server(on_option={nbd.OPT_GO: go}) as peer:
        err = refused(tmp_path, peer, "not \\x1b[31myou\\x0a")
        assert "\x1b" not in err


def test_c25_unknown_error_reply_fails_its_option_only(tmp_path):
    def no(c, data):
        c.reply(nbd.OPT_STRUCTURED, nbd.ERROR | 4711, b"whatever")
    with server(on_option={nbd.OPT_STRUCTURED: no}) as peer:
        copy(tmp_path, peer)


def test_c25_unknown_reply_is_a_protocol_error(tmp_path):
    def odd(c, data):
        c.reply(nbd.OPT_STRUCTURED, 77)
    with server(on_option={nbd.OPT_STRUCTURED: odd}) as peer:
        refused(tmp_path, peer, "STRUCTURED_REPLY", "type 77")


def test_c31_shutdown_ends_softly(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ERR_SHUTDOWN, b"bye")
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer, "shutting down", "bye")
        peer.ends()
        assert peer.options()[-1] == nbd.OPT_ABORT


def test_c32_giving_up_is_polite(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ERR_UNKNOWN)
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer, "no such export")
        peer.ends()
        assert peer.options()[-1] == nbd.OPT_ABORT


def test_c34_no_answer_to_abort(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ERR_UNKNOWN)
    hooks = {nbd.OPT_GO: go, nbd.OPT_ABORT: lambda c, data: c.hang_up()}
    with server(on_option=hooks) as peer:
        refused(tmp_path, peer, "no such export")


def test_c38_export_name_where_go_is_unknown(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ERR_UNSUP)
    with server(on_option={nbd.OPT_GO: go}) as peer:
        copy(tmp_path, peer)
        assert peer.options().index(nbd.OPT_GO) < peer.options().index(nbd.OPT_EXPORT_NAME)


def test_c38_no_export_name_after_another_error(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ERR_POLICY)
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer)
        assert nbd.OPT_EXPORT_NAME not in peer.options()


def test_c38_servers_that_are_not_fixed(tmp_path):
    with server(handshake_flags=0) as peer:
        copy(tmp_path, peer)
        assert set(peer.options()) == {nbd.OPT_EXPORT_NAME}


def test_c46_info_in_any_order_and_unknown_ones(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.INFO, struct.pack(">H", 1000) + b"what?")
        c.info_export(nbd.OPT_GO)
        c.info_blocks(nbd.OPT_GO, 1, 4096, 65536)
        c.reply(nbd.OPT_GO, nbd.ACK)
        return True
    with server(on_option={nbd.OPT_GO: go}) as peer:
        copy(tmp_path, peer)
        assert max(r.length for r in peer.requests(nbd.READ)) <= 65536


def test_c46_ack_without_the_export(tmp_path):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.ACK)
        return True
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer, "without telling the export's size")


def list_reply(name, tail=b"", length=None):
    length = len(name) if length is None else length
    return struct.pack(">I", length) + name + tail


def test_c41_list_with_descriptions():
    def answer(c, data):
        c.reply(nbd.OPT_LIST, nbd.SERVER, list_reply(b"one"))
        c.reply(nbd.OPT_LIST, nbd.SERVER, list_reply(b"two \x1b", b"the second \x07"))
        c.reply(nbd.OPT_LIST, nbd.ACK)
    with server(on_option={nbd.OPT_LIST: answer}) as peer:
        exports = json.loads(run("penstock", "info", "--list", "--json", peer.uri()).out)["exports"]
        assert [e["name"] for e in exports] == ["one", "two \x1b"]
        assert exports[1]["description"] == "the second \x07"
        text = run("penstock", "info", "--list", peer.uri()).out
        assert "\x1b" not in text and "two \\x1b" in text
        peer.ends()
        assert peer.options()[-1] == nbd.OPT_ABORT


@pytest.mark.parametrize("reply", [
    b"abc", list_reply(b"four", length=5), list_reply(b"n" * 4097), list_reply(b"a\0b")],
    ids=["short", "beyond", "long", "nul"])
def test_c41_list_malformed(reply):
    def answer(c, data):
        c.reply(nbd.OPT_LIST, nbd.SERVER, reply)
        c.reply(nbd.OPT_LIST, nbd.ACK)
    with server(on_option={nbd.OPT_LIST: answer}) as peer:
        err = run("penstock", "info", "--list", peer.uri(), status=1).err
        assert "LIST" in err


def test_c41_list_refused():
    def answer(c, data):
        c.reply(nbd.OPT_LIST, nbd.ERR_POLICY, b"secret")
    with server(on_option={nbd.OPT_LIST: answer}) as peer:
        err = run("penstock", "info", "--list", peer.uri(), status=1).err
        assert "secret" in err and "policy" in err


@pytest.mark.parametrize("kind, length", [(0, 11), (0, 13), (3, 13), (3, 15)])
def test_c47_length_of_info(tmp_path, kind, length):
    def go(c, data):
        c.reply(nbd.OPT_GO, nbd.INFO, struct.pack(">H", kind) + bytes(length - 2))
        c.silence()
    with server(on_option={nbd.OPT_GO: go}) as peer:
        refused(tmp_path, peer, "malformed")


def test_c52_block_sizes_are_asked_for():
    with server() as peer:
        run("penstock", "copy", peer.uri(), "null:1M")
        go = next(event[2] for event in peer.log if event[:2] == ("option", nbd.OPT_GO))
        name_length, = struct.unpack(">I", go[:4])
        count, = struct.unpack(">H", go[4 + name_length:6 + name_length])
        asked = struct.unpack(f">{count}H", go[6 + name_length:])
        assert 3 in asked


@pytest.mark.parametrize("error", [nbd.ERR_UNSUP, nbd.ERR_POLICY, nbd.ERR_INVALID])
def test_c54_no_structured_replies(tmp_path, error):
    def no(c, data):
        c.reply(nbd.OPT_STRUCTURED, error)
    with server(on_option={nbd.OPT_STRUCTURED: no}) as peer:
        copy(tmp_path, peer)
        assert nbd.OPT_SET_META not in peer.options()


def test_c66_contexts_of_a_failed_option(tmp_path):
    def meta(c, data):
        c.reply(nbd.OPT_SET_META, nbd.META, struct.pack(">I", 1) + b"base:allocation")
        c.reply(nbd.OPT_SET_META, nbd.ERR_POLICY)
    with server(on_option={nbd.OPT_SET_META: meta}) as peer:
        copy(tmp_path, peer)
        assert not peer.requests(nbd.STATUS)


@pytest.mark.parametrize("name", [b"x" * 4097, b"base\0allocation", b"base:other"],
                         ids=["long", "nul", "other"])
def test_c67_context_names(tmp_path, name):
    def meta(c, data):
        c.reply(nbd.OPT_SET_META, nbd.META, struct.pack(">I", 1) + name)
        c.silence()
    with server(on_option={nbd.OPT_SET_META: meta}) as peer:
        refused(tmp_path, peer, "context" if b"other" in name else "META_CONTEXT")


# --- sizes ---

def test_c90_without_block_sizes_payload_is_at_most_32_mib():
    with server(size=80 << 20, content=b"") as peer:
        run("penstock", "copy", "-S", "0", "-r", "32M", peer.uri(), "null:80M")
        assert max(r.length for r in peer.requests(nbd.READ)) <= 32 << 20


def test_c91_requests_are_cut_to_the_maximum(tmp_path):
    with server(blocks=(1, 4096, 8192)) as peer:
        copy(tmp_path, peer)
        assert max(r.length for r in peer.requests(nbd.READ)) <= 8192


@pytest.mark.parametrize("blocks", [
    (0, 4096, 1 << 20), (3, 4096, 1 << 20), (1 << 17, 1 << 17, 1 << 20), (4096, 512, 1 << 20),
    (512, 5000, 1 << 20), (512, 4096, 2048), (512, 4096, 0)])
def test_c92_block_sizes_that_make_no_sense(tmp_path, blocks):
    with server(blocks=blocks) as peer:
        refused(tmp_path, peer, "block size")


@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 1])
def test_c92_size_beyond_8_eib(tmp_path, size):
    with server(size=size) as peer:
        refused(tmp_path, peer, "more than 8 EiB")


def test_c93_a_tail_smaller_than_a_block(tmp_path):
    with server(size=10000, content=CONTENT[:10000], blocks=(4096, 4096, 65536)) as peer:
        copy(tmp_path, peer)
        assert all(r.offset % 4096 == 0 for r in peer.requests(nbd.READ))
    with server(size=10000, content=bytes(10000), blocks=(4096, 4096, 65536)) as peer:
        write_to(tmp_path, peer, data=CONTENT[:10000])
        assert peer.read(0, 10000) == CONTENT[:10000]


def test_c93_a_tail_that_the_server_refuses(tmp_path):
    def read(c, r):
        if r.length % 4096:
            c.error(r, 22, b"unaligned")
        else:
            c.data(r, r.offset, c.server.read(r.offset, r.length))
    with server(size=10000, blocks=(4096, 4096, 65536), on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "unaligned")


# --- transmission ---

def test_c95_nothing_that_is_not_advertised(tmp_path):
    with server(flags=nbd.HAS_FLAGS, content=bytes(SIZE)) as peer:
        write_to(tmp_path, peer, data=CONTENT[:SIZE // 2] + bytes(SIZE // 2))
        assert {r.type for r in peer.requests()} <= {nbd.READ, nbd.WRITE, nbd.DISC}
        assert {r.flags for r in peer.requests()} == {0}
        assert len(peer.ends()) == 1, "one connection without MULTI_CONN"


def test_c95_unknown_flags_are_ignored(tmp_path):
    with server(flags=nbd.HAS_FLAGS | 0xe000) as peer:
        copy(tmp_path, peer)


def test_c95_a_read_only_export_is_not_written(tmp_path):
    with server(flags=nbd.HAS_FLAGS | nbd.READ_ONLY) as peer:
        with pytest.raises(Failed, match="(?s)exit 1.*for reading only"):
            write_to(tmp_path, peer)
        assert not peer.requests(nbd.WRITE)


@pytest.mark.parametrize("error", [4711, 0x80000000, 0xffffffff])
@pytest.mark.parametrize("structured", [False, True])
def test_c106_unknown_error_numbers(tmp_path, error, structured):
    def read(c, r):
        c.error(r, error) if structured else c.simple(r, error)
    with server(structured=structured, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "Invalid argument")
        assert set(peer.ends()) == {"clean"}


@pytest.mark.parametrize("structured", [False, True])
def test_c107_unknown_cookie(tmp_path, structured):
    def read(c, r):
        c.simple(0xdead, 0)
    with server(structured=structured, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "no request that waits", "0xdead")
        assert "clean" not in peer.ends()


def test_c108_simple_reply_to_a_structured_read(tmp_path):
    def read(c, r):
        c.simple(r, 0, c.server.read(r.offset, r.length))
    with server(on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "a simple reply to READ")


def test_c108_a_simple_error_is_believed(tmp_path):
    with server(on_request={nbd.READ: lambda c, r: c.simple(r, 5)}) as peer:
        refused(tmp_path, peer, "failed READ", "Input/output error")


def test_c108_data_for_a_write(tmp_path):
    def write(c, r, payload):
        c.data(r, r.offset, payload)
    with server(on_request={nbd.WRITE: write}) as peer:
        with pytest.raises(Failed, match="data as the reply to WRITE"):
            write_to(tmp_path, peer)


def test_c109_structured_reply_without_agreement(tmp_path):
    def read(c, r):
        c.data(r, r.offset, bytes(r.length))
    with server(structured=False, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "a structured reply where simple")


@pytest.mark.threaded
def test_c116_several_connections_only_with_multi_conn(tmp_path):
    flags = nbd.HAS_FLAGS | nbd.SEND_FLUSH
    for more, many in ((0, False), (nbd.MULTI_CONN, True)):
        def write(c, r, payload):
            # One worker alone could be done before the others have begun.
            wait_until(lambda: peer.connections() > many, what="a second connection")
            c.honest_request(r, payload)
        with server(flags=flags | more, content=bytes(SIZE), on_request={nbd.WRITE: write}) as peer:
            write_to(tmp_path, peer, "-w", "4", "-r", "64K")
            flush = peer.requests(nbd.FLUSH)
            assert len(peer.ends()) > 1 if many else len(peer.ends()) == 1
            assert flush and peer.requests(nbd.WRITE)
            log = [event[1].type for event in peer.log if event[0] == "request"]
            last_write = len(log) - log[::-1].index(nbd.WRITE)
            assert nbd.FLUSH in log[last_write:]


# --- replies to READ ---

def test_c129_chunks_in_any_order(tmp_path):
    def read(c, r):
        edges = sorted({0, r.length} | {r.length * n // 7 for n in range(8)})
        for n, (a, b) in enumerate(reversed(list(zip(edges, edges[1:])))):
            last = nbd.DONE if n == len(edges) - 2 else 0
            c.data(r, r.offset + a, c.server.read(r.offset + a, b - a), last)
    with server(on_request={nbd.READ: read}) as peer:
        copy(tmp_path, peer)


def both_halves_and(c, r, *more):
    half = r.length // 2
    c.data(r, r.offset, bytes(half), 0)
    for offset, length in more:
        c.data(r, r.offset + offset, bytes(length), 0)
    c.data(r, r.offset + half, bytes(r.length - half))


LYING_READS = {
    "too_long": (lambda c, r: c.data(r, r.offset, bytes(r.length + 1)), "for a READ of"),
    "before": (lambda c, r: c.data(r, (r.offset - 1) % 2**64, bytes(9)),
               "for a READ of"),
    "behind": (lambda c, r: c.data(r, r.offset + r.length, b"x"), "for a READ of"),
    "overlap": (lambda c, r: both_halves_and(c, r, (0, 1)), "overlapping"),
    "gap": (lambda c, r: c.data(r, r.offset, bytes(r.length - 1)), "after sending only"),
    "nothing": (lambda c, r: c.chunk(r, nbd.NONE), "after sending only 0"),
    "hole_of_0": (lambda c, r: c.hole(r, r.offset, 0), "a hole of no bytes"),
    "hole_too_long": (lambda c, r: c.hole(r, r.offset, r.length + 1), "for a READ of"),
    "data_of_0": (lambda c, r: c.data(r, r.offset, b""), "OFFSET_DATA chunk with a length of 8"),
    "none_with_payload": (lambda c, r: c.chunk(r, nbd.NONE, b"x"), "NONE chunk"),
    "none_without_done": (lambda c, r: c.chunk(r, nbd.NONE, flags=0), "without the DONE"),
}


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("lie", LYING_READS)
def test_c129_lies_about_data(tmp_path, lie, extended):
    read, words = LYING_READS[lie]
    with server(extended=extended, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, words)
        assert "clean" not in peer.ends()


def test_c129_a_chunk_after_the_last(tmp_path):
    def read(c, r):
        c.data(r, r.offset, bytes(r.length))
        c.data(r, r.offset, bytes(r.length))
    with server(on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "no request that waits")


def test_c130_content_after_an_error(tmp_path):
    def read(c, r):
        c.error(r, 5, b"a bad sector", 0, nbd.ERROR_OFFSET, struct.pack(">Q", r.offset + 7))
        c.data(r, r.offset, bytes(r.length))
    with server(on_request={nbd.READ: read}) as peer:
        err = refused(tmp_path, peer, "a bad sector", "Input/output error")
        assert "offset " in err
        assert set(peer.ends()) == {"clean"}


def test_c131_unknown_error_chunk_fails_its_request(tmp_path):
    def read(c, r):
        c.error(r, 28, b"new kind", kind=0x8777, tail=b"and more")
    with server(on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "new kind")
        assert set(peer.ends()) == {"clean"}


def test_c131_unknown_chunk_ends_the_connection(tmp_path):
    with server(on_request={nbd.READ: lambda c, r: c.chunk(r, 99)}) as peer:
        refused(tmp_path, peer, "unknown type 99")
        assert "clean" not in peer.ends()


BAD_ERRORS = {
    "short": lambda c, r: c.chunk(r, nbd.ERROR_CHUNK, bytes(5)),
    "text_beyond": lambda c, r: c.chunk(r, nbd.ERROR_CHUNK, struct.pack(">IH", 5, 9) + b"12345678"),
    "text_of_4097": lambda c, r: c.error(r, 5, b"x" * 4097),
    "offset_outside": lambda c, r: c.error(r, 5, b"", nbd.DONE, nbd.ERROR_OFFSET,
                                           struct.pack(">Q", r.offset + r.length)),
}


@pytest.mark.parametrize("lie", BAD_ERRORS)
def test_c132_malformed_errors(tmp_path, lie):
    with server(on_request={nbd.READ: BAD_ERRORS[lie]}) as peer:
        refused(tmp_path, peer, "the server")
        assert "clean" not in peer.ends()


def test_c132_error_zero_is_an_error(tmp_path):
    with server(on_request={nbd.READ: lambda c, r: c.error(r, 0, b"all is well")}) as peer:
        refused(tmp_path, peer, "all is well", "Invalid argument")


@pytest.mark.parametrize("kind", [nbd.DATA, nbd.ERROR_CHUNK, nbd.HOLE, nbd.STATUS_CHUNK])
@pytest.mark.parametrize("extended", [False, True])
def test_c133_payload_without_end(tmp_path, kind, extended):
    def read(c, r):
        c.chunk(r, kind, bytes(64), length=(1 << 62) if extended else 0xffffffff)
        c.silence()
    with server(extended=extended, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "the server sent")


def test_c135_chunks_of_several_requests_mixed(tmp_path):
    """Two requests at a time are answered in turns, the second one's half first."""
    waiting = []

    def read(c, r):
        waiting.append(r)
        left = SIZE - sum(q.length for q in c.server.requests(nbd.READ))
        if len(waiting) < 2 and left > 0:
            return
        for half in (0, 1):
            for q in reversed(waiting):
                a, b = (0, q.length // 2) if half == 0 else (q.length // 2, q.length)
                c.data(q, q.offset + a, c.server.read(q.offset + a, b - a), half and nbd.DONE)
        waiting.clear()

    with server(on_request={nbd.READ: read}) as peer:
        copy(tmp_path, peer, "-w", "1", "-d", "8", "-r", "64K")


# --- block status ---

def test_c142_zeros_are_not_trusted_to_trim(tmp_path):
    """A server that can only discard gets zeros as data: what it discards may stay."""
    old = b"\xff" * SIZE
    flags = nbd.HAS_FLAGS | nbd.SEND_FLUSH | nbd.SEND_TRIM
    with server(content=old, flags=flags) as peer:
        write_to(tmp_path, peer, data=CONTENT[:4096] + bytes(SIZE - 4096))
        assert peer.read(0, SIZE) == CONTENT[:4096] + bytes(SIZE - 4096)
        assert not peer.requests(nbd.TRIM)


def test_c155_shorter_longer_and_equal_extents(tmp_path):
    """Any shape of a true answer: 1000 bytes at a time, a last one beyond the end, unknown bits."""
    content = bytearray(SIZE)
    content[300000:400000] = CONTENT[:100000]

    def status(c, r):
        if r.offset < 300000:
            n = min(1000, 300000 - r.offset)
            c.status(r, (n, 3), (300000 - r.offset - n, 3)) if n < 300000 - r.offset \
                else c.status(r, (n, 3))
        elif r.offset < 400000:
            c.status(r, (1, 0), (400000 - r.offset, 0xf0))
        else:
            c.status(r, (0xffffffff, 0x83))

    with server(context=True, content=content, on_request={nbd.STATUS: status}) as peer:
        copy(tmp_path, peer)
        assert sum(r.length for r in peer.requests(nbd.READ)) < SIZE // 2


LYING_STATUS = {
    "no_extent": (lambda c, r: c.status(r), "BLOCK_STATUS chunk"),
    "odd_length": (lambda c, r: c.chunk(r, nbd.STATUS_CHUNK, bytes(13)), "BLOCK_STATUS chunk"),
    "extent_of_0": (lambda c, r: c.status(r, (512, 0), (0, 0)), "an extent of no bytes"),
    "other_context": (lambda c, r: c.status(r, (512, 0), context=1), "context 1, which was not"),
    "twice": (lambda c, r: [c.status(r, (512, 0), flags=0) for _ in "ab"], "twice"),
    "none": (lambda c, r: c.chunk(r, nbd.NONE), "without any extents"),
    "data": (lambda c, r: c.data(r, r.offset, bytes(10)), "data as the reply to BLOCK_STATUS"),
    "simple": (lambda c, r: c.simple(r), "simple reply to BLOCK_STATUS"),
}


@pytest.mark.parametrize("lie", LYING_STATUS)
def test_c156_lies_about_extents(tmp_path, lie):
    status, words = LYING_STATUS[lie]
    with server(context=True, on_request={nbd.STATUS: status}) as peer:
        refused(tmp_path, peer, words)
        assert "clean" not in peer.ends()


def test_c155_the_map_is_what_the_server_says():
    def status(c, r):
        whole = [(0, 1000, 3), (1000, 5000, 0), (6000, 300000, 2), (306000, 1 << 20, 1)]
        answer = [(start + length - max(r.offset, start), flags) for start, length, flags in whole
                  if start + length > r.offset]
        c.status(r, *answer[:1 if r.flags & nbd.REQ_ONE else 2])
    with server(context=True, on_request={nbd.STATUS: status}) as peer:
        extents = json.loads(run("penstock", "map", "--json", peer.uri()).out)["extents"]
        assert [(e["offset"], e["length"], e["hole"] + 2 * e["zero"]) for e in extents] == [
            (0, 1000, 3), (1000, 5000, 0), (6000, 300000, 2), (306000, SIZE - 306000, 1)]


def test_c157_status_that_fails_is_an_error_or_data(tmp_path):
    """A server that can't tell is asked for all the bytes, or the copy fails; never zeros."""
    with server(context=True, on_request={nbd.STATUS: lambda c, r: c.error(r, 95)}) as peer:
        out = tmp_path / "out"
        status = run("penstock", "copy", peer.uri(), out, status=[0, 1]).status
        assert status == 1 or out.read_bytes() == CONTENT


# --- the end ---

def test_c159_disc_is_the_last(tmp_path):
    with server(extended=False) as peer:
        copy(tmp_path, peer)
        assert set(peer.ends()) == {"clean"}
        for r in peer.requests(nbd.DISC):
            assert (r.flags, r.offset, r.length) == (0, 0, 0)


def test_c163_shutdown_ends_softly(tmp_path):
    with server(on_request={nbd.READ: lambda c, r: c.error(r, 108, b"going down")}) as peer:
        refused(tmp_path, peer, "going down")
        assert set(peer.ends()) == {"clean"}


@pytest.mark.parametrize("structured", [False, True])
def test_server_hangs_up_in_the_middle(tmp_path, structured):
    def read(c, r):
        if r.offset > SIZE // 2:
            c.hang_up()
        c.honest_request(r, b"")
    with server(structured=structured, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "closed the connection", peer.uri())


def test_server_hangs_up_in_a_payload(tmp_path):
    def read(c, r):
        c.send(struct.pack(">IHHQIQ", nbd.STRUCTURED, 1, nbd.DATA, r.cookie, 8 + r.length,
                           r.offset), bytes(r.length - 1))
        c.hang_up()
    with server(on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "closed the connection")


def test_server_hangs_up_on_a_write(tmp_path):
    with server(on_request={nbd.WRITE: lambda c, r, payload: c.hang_up()}) as peer:
        with pytest.raises(Failed, match="(?s)exit 1.*closed the connection"):
            write_to(tmp_path, peer)


def test_server_fails_the_flush(tmp_path):
    with server(on_request={nbd.FLUSH: lambda c, r: c.error(r, 5, b"disk gone")}) as peer:
        with pytest.raises(Failed, match="(?s)exit 1.*disk gone"):
            write_to(tmp_path, peer)


def test_server_that_says_nothing(tmp_path):
    """The limit for connecting covers the handshake."""
    with server(greeting=b"") as peer:
        err = run("penstock", "copy", "--connect-timeout=0.2", peer.uri(), tmp_path / "out",
                  status=1).err
        assert "in time" in err


# --- extended headers ---

def test_c166_extended_headers_refused(tmp_path):
    with server(extended=False, context=True) as peer:
        copy(tmp_path, peer)
        assert {r.magic for r in peer.requests()} == {nbd.REQUEST}


def test_b167_extended_headers(tmp_path):
    with server(extended=True, context=True) as peer:
        copy(tmp_path, peer)
        assert {r.magic for r in peer.requests()} == {nbd.REQUEST_EXT}
        assert nbd.OPT_STRUCTURED not in peer.options()


@pytest.mark.parametrize("magic", [nbd.SIMPLE, nbd.STRUCTURED])
def test_b168_compact_replies_in_extended_mode(tmp_path, magic):
    def read(c, r):
        c.send(struct.pack(">IIQ", magic, 0, r.cookie) + bytes(64))
    with server(extended=True, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "where extended replies were agreed on")


def test_c169_payload_flag_on_writes_only(tmp_path):
    flags = nbd.HAS_FLAGS | nbd.SEND_FLUSH | nbd.SEND_ZEROES | nbd.SEND_TRIM
    with server(extended=True, flags=flags, content=bytes(SIZE)) as peer:
        write_to(tmp_path, peer, data=CONTENT[:SIZE // 2] + bytes(SIZE // 2))
        assert peer.read(0, SIZE // 2) == CONTENT[:SIZE // 2]
        for r in peer.requests():
            assert bool(r.flags & nbd.PAYLOAD_LEN) == (r.type == nbd.WRITE)


def test_c171_zeros_of_any_length_in_one_request(tmp_path):
    source = tmp_path / "in"
    with open(source, "wb") as file:
        file.truncate(6 << 30)
    flags = nbd.HAS_FLAGS | nbd.SEND_ZEROES | nbd.SEND_FLUSH
    hooks = {nbd.ZEROES: lambda c, r: c.chunk(r, nbd.NONE)}
    with server(extended=True, flags=flags, size=6 << 30, content=b"", on_request=hooks) as peer:
        run("penstock", "copy", source, peer.uri())
        zeroes = peer.requests(nbd.ZEROES)
        assert sum(r.length for r in zeroes) == 6 << 30
        assert not peer.requests(nbd.WRITE)


def test_c172_compact_extents_in_extended_mode(tmp_path):
    def status(c, r):
        c.chunk(r, nbd.STATUS_CHUNK, struct.pack(">III", nbd.CONTEXT_ID, r.length, 0))
    with server(extended=True, context=True, on_request={nbd.STATUS: status}) as peer:
        refused(tmp_path, peer, "not agreed on")


def test_c176_offset_that_is_no_echo(tmp_path):
    def read(c, r):
        c.chunk(r, nbd.DATA, struct.pack(">Q", r.offset) + bytes(r.length), offset=r.offset + 1)
    with server(extended=True, on_request={nbd.READ: read}) as peer:
        refused(tmp_path, peer, "names offset")


# --- URIs ---

BAD_URIS = [
    ("nbds://localhost/", "TLS is not built in"),
    ("nbds+unix:///?socket=/a", "TLS is not built in"),
    ("nbd+unix:///x", "needs ?socket=PATH"),
    ("nbd+unix:///a%00b?socket=/a", "NUL"),
    ("nbd://localhost/x?sockte=/a", "sockte"),
    ("nbd://localhost/x?tls-verify-peer=false", "TLS is not built in"),
    ("nbd://localhost:99999/x", "65535"),
    ("nbd://localhost/x#y", "fragment"),
]


@pytest.mark.parametrize("uri, words", BAD_URIS)
def test_c183_uris_that_are_refused(uri, words):
    err = run("penstock", "copy", uri, "null:1M", status=[1, 2]).err
    assert words in err


@pytest.mark.parametrize("export, name", [
    ("", b""), ("a%20b", b"a b"), ("/x", b"/x"), ("%C3%A9", "é".encode()), ("a/b", b"a/b")])
def test_c181_export_names(export, name):
    with server(size=4096) as peer:
        run("penstock", "copy", f"nbd+unix:///{export}?socket={peer.socket}", "null:4096")
        go = next(event[2] for event in peer.log if event[:2] == ("option", nbd.OPT_GO))
        assert go[4:4 + struct.unpack(">I", go[:4])[0]] == name


def test_c180_abstract_socket():
    with server(size=4096, abstract=True) as peer:
        for mark in ("%00", "@"):
            run("penstock", "copy", f"nbd+unix:///?socket={mark}{peer.socket}", "null:4096")
