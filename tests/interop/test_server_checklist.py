"""
The server against what the NBD protocol asks of one, byte by byte. The number in a test's name is
the item's in docs/nbd-checklist.md: S for servers, B for both sides. One server does for nearly
all of them, and must still be well at the end.
"""

import os
import signal
import socket
import struct

import pytest

from harness import Server, image_random, image_sparse, random_bytes, wait_until
from harness import rawnbd as nbd
from harness.process import Program, PENSTOCK
from harness.rawnbd import Closed, Raw, connect, meta_data, name_data

MIB = 1 << 20
SIZE = 4 * MIB + 777
HUGE = (1 << 63) - 512
MODES = ("simple", "structured", "extended")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with an export of each kind."""
    folder = tmp_path_factory.mktemp("site")
    image_random(folder / "disk", SIZE, seed=1)
    image_sparse(folder / "sparse", 8 * MIB, data=128 << 10, every=MIB)
    image_random(folder / "shrinks", 2 * MIB, seed=2)
    exports = [
        ("", folder / "disk", "the first"),
        ("sparse", folder / "sparse", None),
        ("shrinks", folder / "shrinks", None),
        ("mem", f"memory:{MIB}", "forgotten soon"),
        ("huge", f"null:{HUGE}", None),
        ("slow", f"fault:delay-read=30ms@0:memory:{MIB}", None),
        ("held", f"fault:hold-read@0:memory:{MIB}", None),
        ("bad", "fault:read-error=EIO@512K,write-error=EDQUOT@512K,no-extents:"
                f"memory:{MIB}", None),
        ("slowzero", f"fault:no-fast-zero:memory:{MIB}", None),
        ("no-trim", f"fault:no-discard,no-zero:memory:{MIB}", None),
        ("name-\u00e9" + "n" * 200, "null:1M", None),
    ]
    args = []
    for name, endpoint, description in exports:
        args += ["--export", name]
        if description:
            args += ["--description", description]
        args.append(endpoint)
    with Server(*args) as server:
        server.names = [name for name, _, _ in exports]
        server.disk = folder / "disk"
        server.shrinks = folder / "shrinks"
        yield server


@pytest.fixture(scope="module")
def readonly():
    """A server with an export that cannot be written."""
    with Server("-r", "--export", "ro", f"pattern:{MIB}") as server:
        yield server


@pytest.fixture
def raw(site):
    """A connection that is still haggling."""
    with Raw(site.socket) as one:
        yield one


@pytest.fixture(params=MODES)
def conn(site, request):
    """A connection to the first export, in each mode."""
    with connect(site.socket, request.param) as one:
        yield one


def alive(one):
    """The transmission phase goes on."""
    return one.call(nbd.READ, 0, 512).error == 0


# 3.1 basics


@pytest.mark.parametrize("offset", [1 << 63, (1 << 64) - 1, (1 << 64) - 512, SIZE, 1 << 62])
def test_b001_offsets_are_unsigned(conn, offset):
    assert conn.call(nbd.READ, offset, 512).error == nbd.EINVAL
    assert conn.call(nbd.WRITE_ZEROES, offset, 512).error == nbd.ENOSPC
    assert alive(conn)


@pytest.mark.parametrize("length, reply", [(4096, nbd.UNKNOWN), (4097, nbd.INVALID)])
def test_b002_strings_have_at_most_4096_bytes(raw, length, reply):
    assert raw.final(nbd.INFO, name_data("x" * length)) == reply
    assert raw.final(nbd.LIST) == nbd.ACK


def test_b004_two_pipes_are_a_transport(tmp_path):
    disk = image_random(tmp_path / "disk", 100000)
    ours, theirs = os.pipe()
    back, out = os.pipe()
    program = Program([PENSTOCK, "serve", "--stdio", disk], stdin=ours, stdout=out)
    os.close(ours)
    os.close(out)
    request = struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.READ, 7, 99000, 1000)
    disc = struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.DISC, 8, 0, 0)
    os.write(theirs, struct.pack(">IQII", 3, nbd.OPTION, nbd.EXPORT_NAME, 0) + request + disc)
    with os.fdopen(back, "rb") as answer:
        data = answer.read()
    os.close(theirs)
    assert data[18:26] == struct.pack(">Q", 100000)
    assert data[28:44] == struct.pack(">IIQ", nbd.SIMPLE, 0, 7)
    assert data[44:] == disk.read_bytes()[99000:]
    assert program.wait() == 0


def test_b005_one_byte_at_a_time(site):
    with Raw(site.socket, greet=False) as one:
        one.get(18)
        payload = bytes(range(40))
        stream = struct.pack(">IQII", 3, nbd.OPTION, nbd.GO, 9) + name_data("mem")
        stream += struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.WRITE, 1, 1000, 40) + payload
        stream += struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.READ, 1, 1000, 40)
        for at in range(len(stream)):
            one.send(stream[at:at + 1])
        assert one.replies(nbd.GO)[-1].type == nbd.ACK
        assert one.result().error == 0
        assert one.result((1000, 40)).data == payload


def test_s006_vanishing_clients_do_not_end_the_server(site):
    for _ in range(20):
        with connect(site.socket, "simple") as one:
            for _ in range(8):
                one.request(nbd.READ, 0, 512 << 10)
    with connect(site.socket) as one:
        assert alive(one)


def test_s007_a_partial_header_does_nothing(site):
    with connect(site.socket, "simple", "mem") as one:
        before = one.read(8192, 4096)
        header = struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.WRITE_ZEROES, 1, 8192, 4096)
        assert one.write(8192, b"x" * 4096) == 0
        one.send(header[:-1])
        one.sock.shutdown(socket.SHUT_WR)
        assert one.ends()
    with connect(site.socket, "simple", "mem") as one:
        assert one.read(8192, 4096) == b"x" * 4096
        assert one.write(8192, before) == 0


@pytest.mark.parametrize("magic", [0x12560953, 0x96744668, 0x25609514, 0, nbd.SIMPLE,
                                   nbd.REQUEST_EXT])
def test_b008_s096_other_magics_end_the_connection(site, magic):
    with connect(site.socket) as one:
        one.send(struct.pack(">IHHQQI", magic, 0, 0, 1, 0, 512))
        assert one.ends()


# 3.2 handshake


def test_s009_handshake_flags(raw):
    assert raw.handshake_flags == 3


@pytest.mark.parametrize("flags", [4, 7, 1 << 31, 0xFFFFFFFF])
def test_s012_unknown_client_flags_end_it(site, flags):
    with Raw(site.socket, flags=flags) as one:
        one.option(nbd.LIST)
        assert one.ends()


@pytest.mark.parametrize("flags", [0, 2])
def test_s013_a_client_without_fixed_newstyle(site, flags):
    with Raw(site.socket, flags=flags) as one:
        one.export_name(zeroes=not flags & 2)
        assert one.size == SIZE and alive(one)


@pytest.mark.parametrize("flags", [1, 3])
def test_s015_s036_zeroes_after_export_name_never_after_go(site, flags):
    with Raw(site.socket, flags=flags) as one:
        one.export_name(zeroes=flags == 1)
        assert one.size == SIZE and one.flags & nbd.HAS_FLAGS and alive(one)
    with Raw(site.socket, flags=flags) as one:
        one.go()
        assert alive(one)


def test_s016_s185_a_handshake_has_its_time(tmp_path):
    disk = image_random(tmp_path / "disk", 4096)
    with Server("--handshake-timeout", "0.2", disk) as server:
        with Raw(server.socket, greet=False) as one:
            assert one.get(18) and one.ends()
        with Raw(server.socket) as one:
            one.send(b"I")
            assert one.ends()


def test_s017_hundreds_of_options(raw):
    for _ in range(500):
        assert raw.final(nbd.INFO, name_data("mem")) == nbd.ACK


# 3.3 option haggling


@pytest.mark.parametrize("magic", [0, nbd.OPTION_REPLY, nbd.OPTION ^ 1])
def test_s018_option_magic(raw, magic):
    raw.send(struct.pack(">QII", magic, nbd.LIST, 0))
    assert raw.ends()


@pytest.mark.parametrize("number", [0, 4, 12, 13, 100, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("length", [0, 1, 1000, 100000])
def test_s019_s021_unknown_options(raw, number, length):
    raw.option(number, bytes(length))
    raw.option(nbd.LIST)
    assert raw.reply(number).type == nbd.UNSUP
    assert raw.replies(nbd.LIST)[-1].type == nbd.ACK


def test_s019_s069_peek_export(raw):
    assert raw.final(nbd.PEEK) == nbd.UNSUP


@pytest.mark.parametrize("number", [99, nbd.GO, nbd.SET_META, nbd.EXPORT_NAME])
def test_s020_absurd_lengths_end_it(raw, number):
    raw.option(number, b"x" * 100, length=0xFFFFFFFF)
    assert raw.ends()


@pytest.mark.parametrize("number", [nbd.GO, nbd.LIST_META, nbd.SET_META, nbd.LIST])
def test_s020_s065_long_options_are_refused_in_step(raw, number):
    assert raw.final(number, bytes(1 << 20)) & nbd.ERR
    assert raw.final(nbd.INFO, name_data("mem")) == nbd.ACK


def test_s026_errors_for_ever(raw):
    for _ in range(300):
        assert raw.final(nbd.GO, b"") == nbd.INVALID


def test_s027_s053_structured_reply(raw):
    assert raw.final(nbd.STRUCTURED_REPLY, b"x") == nbd.INVALID
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    assert raw.final(nbd.STRUCTURED_REPLY) in (nbd.ACK, nbd.INVALID)
    raw.structured = True
    raw.go()
    assert alive(raw)


TRAP = struct.pack(">QII", nbd.OPTION, nbd.ABORT, 0)
LIES = [
    b"", b"\0\0\0\0", b"\0\0\0\0\0",
    struct.pack(">I2sH", 3, b"ro", 0),
    struct.pack(">I2sH", 0xFFFFFFFF, b"ro", 0),
    struct.pack(">I2sH", 2, b"ro", 1),
    struct.pack(">I2sHH", 2, b"ro", 0, 3),
    struct.pack(">I2sH", 2, b"ro", 0) + TRAP,
    TRAP,
]


@pytest.mark.parametrize("number", [nbd.INFO, nbd.GO])
@pytest.mark.parametrize("data", LIES)
def test_s028_s029_s042_lengths_that_lie(raw, number, data):
    assert raw.ask(number, data)[0].type == nbd.INVALID
    assert raw.final(nbd.INFO, name_data("mem")) == nbd.ACK


META_LIES = [
    b"", bytes(7), struct.pack(">I", 5) + bytes(4),
    struct.pack(">II", 0, 1),
    struct.pack(">III", 0, 1, 5) + b"base",
    struct.pack(">III", 0, 1, 0xFFFFFFFF),
    struct.pack(">II", 0, 0xFFFFFFFF),
    struct.pack(">II", 0, 0) + TRAP,
    struct.pack(">III", 0, 1, 4097) + b"x" * 4097,
]


@pytest.mark.parametrize("number", [nbd.LIST_META, nbd.SET_META])
@pytest.mark.parametrize("data", META_LIES)
def test_s028_s029_s059_s065_lengths_that_lie_in_meta(raw, number, data):
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    assert raw.ask(number, data)[0].type == nbd.INVALID
    assert raw.final(nbd.INFO, name_data("mem")) == nbd.ACK


def test_s030_shutting_down_is_said(tmp_path):
    disk = image_random(tmp_path / "disk", 4096)
    with Server("--handshake-timeout", "none", disk) as server:
        with Raw(server.socket) as one:
            assert one.final(nbd.LIST) == nbd.ACK
            server.program.kill(signal.SIGTERM)
            kinds = []
            try:
                while nbd.SHUTDOWN not in kinds:
                    kinds.append(one.final(nbd.LIST))
                assert one.final(nbd.ABORT) == nbd.ACK
            except Closed:
                pass
            assert set(kinds) <= {nbd.ACK, nbd.SHUTDOWN}
        server.wait()


def test_s033_abort(site):
    for data in (b"", b"ignored"):
        with Raw(site.socket) as one:
            assert one.final(nbd.ABORT, data) == nbd.ACK
            assert one.ends()
    with Raw(site.socket) as one:
        one.option(nbd.ABORT)  # and it does not read the reply


# 3.4 options


@pytest.mark.parametrize("name", [b"nobody", b"x" * 5000, b"a\0b"])
def test_s035_export_name_of_nothing_ends_it(raw, name):
    raw.option(nbd.EXPORT_NAME, name)
    assert raw.ends()


def test_s037_the_default_export(site, tmp_path):
    with connect(site.socket) as one:
        assert one.size == SIZE
    disk = image_random(tmp_path / "disk", 5000)
    with Server("--export", "only", disk) as server, connect(server.socket) as one:
        assert one.size == 5000  # one export is the default, whatever its name
        with Raw(server.socket) as other:
            assert other.go("", [nbd.INFO_NAME])[nbd.INFO_NAME] == b"only"


def test_s039_list(site, raw):
    assert raw.final(nbd.LIST, b"x") == nbd.INVALID
    for _ in range(2):
        replies = raw.ask(nbd.LIST)
        found = {}
        for reply in replies[:-1]:
            assert reply.type == nbd.SERVER
            length = struct.unpack(">I", reply.data[:4])[0]
            found[reply.data[4:4 + length].decode()] = reply.data[4 + length:]
        assert sorted(found) == sorted(site.names)
        assert found[""] == b"the first" and found["sparse"] == b""


def test_s040_list_may_be_refused(tmp_path):
    disk = image_random(tmp_path / "disk", 4096)
    with Server("--no-list", disk) as server, Raw(server.socket) as one:
        assert one.final(nbd.LIST) == nbd.POLICY
        one.go()


def test_s043_s044_s045_information(raw):
    kinds = [3, 77, 2, 1, 1, 3, 0, 65535]
    found = raw.take_info(raw.ask(nbd.INFO, name_data("mem", kinds)))
    assert found[nbd.INFO_NAME] == b"mem"
    assert found[nbd.INFO_DESCRIPTION] == b"forgotten soon"
    assert raw.size == MIB
    found = raw.take_info(raw.ask(nbd.INFO, name_data("mem")))
    assert len(found[nbd.INFO_EXPORT]) == 10


def test_s048_info_then_go(raw):
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    kinds = [nbd.INFO_BLOCK_SIZE, nbd.INFO_NAME]
    info = raw.take_info(raw.ask(nbd.INFO, name_data("", kinds)))
    assert raw.go("", kinds) == info


def test_s049_s050_unknown_exports(raw):
    for number in (nbd.INFO, nbd.GO):
        replies = raw.ask(number, name_data("nobody"))
        assert [reply.type for reply in replies] == [nbd.UNKNOWN]
    raw.go("mem")
    assert alive(raw)


def test_s051_s084_s086_block_sizes(site):
    for name in site.names:
        with Raw(site.socket) as one:
            found = one.go(name)
            low, preferred, high = struct.unpack(">III", found[nbd.INFO_BLOCK_SIZE])
            assert low == 1 and preferred >= 512 and preferred & (preferred - 1) == 0
            assert high >= max(MIB, preferred)
            assert one.size % low == 0


def test_s055_contexts_need_structured_replies(raw):
    assert raw.final(nbd.SET_META, meta_data("", ["base:allocation"])) == nbd.INVALID
    assert raw.final(nbd.LIST_META, meta_data("", [])) == nbd.ACK


@pytest.mark.parametrize("spoiler", [
    meta_data("nobody", ["base:allocation"]), meta_data("", []), meta_data("", ["x:y"]), b"zzz",
    bytes(1 << 20)])
def test_s056_set_meta_replaces_the_set(raw, spoiler):
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    raw.set_base()
    raw.final(nbd.SET_META, spoiler)
    raw.go()
    raw.structured = True
    assert raw.call(nbd.BLOCK_STATUS, 0, 512).error == nbd.EINVAL
    assert alive(raw)


def test_s057_the_set_belongs_to_its_export(raw):
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    raw.set_base("mem")
    raw.go("sparse")
    raw.structured = True
    assert raw.call(nbd.BLOCK_STATUS, 0, 512).error == nbd.EINVAL


def contexts(raw, number, queries):
    """(ID, name) of each context in the answer."""
    replies = raw.ask(number, meta_data("", queries))
    assert replies[-1].type == nbd.ACK
    return [(struct.unpack(">I", reply.data[:4])[0], reply.data[4:]) for reply in replies[:-1]]


def test_s059_s060_s061_s062_s063_queries(raw):
    base = b"base:allocation"
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    assert contexts(raw, nbd.LIST_META, []) == [(0, base)]
    assert contexts(raw, nbd.LIST_META, ["base:"]) == [(0, base)]
    assert contexts(raw, nbd.LIST_META, ["base:allocation"] * 2) == [(0, base)]
    assert contexts(raw, nbd.LIST_META, ["qemu:", "base:other", "nocolon", "", "base"]) == []
    assert contexts(raw, nbd.SET_META, []) == []
    assert contexts(raw, nbd.SET_META, ["base:"]) == []
    assert contexts(raw, nbd.SET_META, ["x-y:z", "base:other"]) == []
    found = contexts(raw, nbd.SET_META, ["base:allocation", "qemu:x", "base:allocation"])
    assert len(found) == 1 and found[0][1] == base


def test_s064_many_queries(raw):
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    assert len(contexts(raw, nbd.SET_META, ["base:allocation", "x:"] * 500)) == 1
    assert raw.final(nbd.SET_META, meta_data("", ["base:allocation"] * 10000)) == nbd.TOO_BIG


def test_s068_strange_names(raw):
    assert raw.final(nbd.INFO, name_data(b"a\0b")) == nbd.INVALID
    assert raw.final(nbd.INFO, name_data(b"\xff\xfe\x80")) == nbd.UNKNOWN
    assert raw.final(nbd.INFO, name_data("name-\u00e9" + "n" * 200)) == nbd.ACK


def test_s070_s073_no_tls(raw):
    assert raw.final(nbd.STARTTLS, b"x") == nbd.INVALID
    assert raw.final(nbd.STARTTLS) in (nbd.UNSUP, nbd.POLICY)
    raw.go()


# 3.6 sizes


def test_s085_s087_any_alignment(conn, site):
    for offset, length in ((1, 1), (511, 3), (SIZE - 1, 1), (SIZE - 777, 777), (65535, 70001)):
        assert conn.read(offset, length) == site.disk.read_bytes()[offset:offset + length]


@pytest.mark.parametrize("mode", MODES)
def test_s088_payload_up_to_64_mib(site, mode):
    with connect(site.socket, mode, "huge") as one:
        assert one.write(0, bytes(64 * MIB)) == 0
        assert one.call(nbd.READ, 0, 32 * MIB).error == 0


def test_s088_larger_payload_is_consumed_or_the_end(site):
    with connect(site.socket, "simple", "huge") as one:
        assert one.write(0, bytes(64 * MIB + 1)) == nbd.EINVAL
        assert alive(one)
        one.request(nbd.WRITE, 0, 0xFFFFFFFF)
        assert one.ends()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("command", [nbd.TRIM, nbd.WRITE_ZEROES, nbd.CACHE])
def test_s089_s144_long_requests_without_payload(site, mode, command):
    with connect(site.socket, mode, "huge") as one:
        assert one.call(command, 512, 0xFFFFFFFF).error == 0
        assert alive(one)


# 3.7 transmission


def test_s094_flags(site, readonly):
    def flags(name, mode="structured", base=True):
        server = readonly if name == "ro" else site
        with connect(server.socket, mode, name, base) as one:
            return one.flags
    disk = flags("")
    for bit in (nbd.HAS_FLAGS, nbd.SEND_FLUSH, nbd.SEND_FUA, nbd.SEND_TRIM, nbd.SEND_WRITE_ZEROES,
                nbd.SEND_DF, nbd.MULTI_CONN):
        assert disk & bit
    assert not disk & (nbd.READ_ONLY | nbd.STATUS_PAYLOAD)
    assert flags("ro") & nbd.READ_ONLY and not flags("ro") & nbd.SEND_TRIM
    assert not flags("", "simple") & nbd.SEND_DF
    assert flags("", "extended") & nbd.STATUS_PAYLOAD
    assert not flags("", "extended", base=False) & nbd.STATUS_PAYLOAD
    assert not flags("no-trim") & (nbd.SEND_TRIM | nbd.SEND_FAST_ZERO)


@pytest.mark.parametrize("cookie", [0, 1, 1 << 63, (1 << 64) - 1])
def test_s097_cookies_come_back(conn, cookie):
    assert conn.call(nbd.READ, 0, 512, cookie=cookie).cookie == cookie
    assert conn.call(nbd.FLUSH, cookie=cookie).cookie == cookie
    assert conn.call(99, cookie=cookie).cookie == cookie


def test_s097_duplicate_cookies(site):
    with connect(site.socket, "simple", "mem") as one:
        for _ in range(100):
            one.request(nbd.FLUSH, cookie=5)
        assert all(one.result().cookie == 5 for _ in range(100))


@pytest.mark.parametrize("mode", MODES)
def test_s098_requests_overtake(site, mode):
    with connect(site.socket, mode, "slow") as one:
        one.request(nbd.READ, 0, 512, cookie=1)
        one.request(nbd.READ, 4096, 512, cookie=2)
        assert one.result((4096, 512)).cookie == 2
        assert one.result((0, 512)).cookie == 1


RANGES = [(SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (1 << 63, 1 << 31), ((1 << 64) - 1, 2)]


@pytest.mark.parametrize("offset, length", RANGES)
def test_s099_s100_out_of_range(conn, offset, length):
    for command in (nbd.READ, nbd.TRIM, nbd.CACHE, nbd.BLOCK_STATUS):
        assert conn.call(command, offset, length).error == nbd.EINVAL
    assert conn.call(nbd.WRITE_ZEROES, offset, length).error == nbd.ENOSPC
    if length < 5 * MIB:
        assert conn.write(offset, bytes(length)) == nbd.ENOSPC
    assert alive(conn)


@pytest.mark.parametrize("length", [1, 512, 16384, 100000, 300000])
def test_s100_refused_writes_are_consumed(site, readonly, length):
    with connect(readonly.socket, "structured", "ro") as one:
        assert one.write(0, random_bytes(length)) == nbd.EPERM
        assert alive(one)
    with connect(site.socket) as one:
        assert one.write(0, random_bytes(length), flags=nbd.DF) == nbd.EINVAL
        assert alive(one)


@pytest.mark.parametrize("command", [8, 9, 100, 0xFFFF])
def test_s101_s178_unknown_commands(conn, command):
    assert conn.call(command, 0, 512).error == nbd.EINVAL
    assert alive(conn)


WRONG_FLAGS = [
    (nbd.READ, nbd.NO_HOLE), (nbd.READ, nbd.REQ_ONE), (nbd.READ, nbd.FAST_ZERO),
    (nbd.READ, 1 << 15), (nbd.FLUSH, nbd.DF), (nbd.TRIM, nbd.NO_HOLE), (nbd.TRIM, nbd.FAST_ZERO),
    (nbd.CACHE, nbd.DF), (nbd.CACHE, nbd.REQ_ONE), (nbd.WRITE_ZEROES, nbd.DF),
    (nbd.WRITE_ZEROES, nbd.REQ_ONE), (nbd.BLOCK_STATUS, nbd.NO_HOLE), (nbd.BLOCK_STATUS, 1 << 6),
]


@pytest.mark.parametrize("command, flags", WRONG_FLAGS)
def test_s102_s143_flags_that_do_not_belong(conn, command, flags):
    assert conn.call(command, 0, 512, flags=flags).error == nbd.EINVAL
    assert alive(conn)


@pytest.mark.parametrize("flags", [nbd.NO_HOLE, nbd.DF, nbd.REQ_ONE, nbd.FAST_ZERO, 1 << 12])
def test_s102_wrong_flags_on_write(conn, flags):
    assert conn.write(0, bytes(100), flags=flags) == nbd.EINVAL
    assert alive(conn)


def test_s102_fast_zero_that_was_not_offered(site):
    with connect(site.socket, "simple", "no-trim") as one:
        assert not one.flags & nbd.SEND_FAST_ZERO
        assert one.call(nbd.WRITE_ZEROES, 0, 512, flags=nbd.FAST_ZERO).error == nbd.EINVAL


@pytest.mark.parametrize("mode", MODES)
def test_s102_fua_belongs_to_all(site, mode):
    with connect(site.socket, mode) as one:
        for command in (nbd.READ, nbd.FLUSH, nbd.CACHE):
            length = 0 if command == nbd.FLUSH else 512
            assert one.call(command, 0, length, flags=nbd.FUA).error == 0
        data = one.read(0, 512)
        assert one.write(0, data, flags=nbd.FUA) == 0


def test_s103_nothing_long(conn):
    for command in (nbd.READ, nbd.WRITE, nbd.TRIM, nbd.WRITE_ZEROES, nbd.CACHE):
        assert conn.call(command, 100, 0).error == 0
    assert conn.call(nbd.BLOCK_STATUS, 100, 0).error == nbd.EINVAL
    assert alive(conn)


@pytest.mark.parametrize("mode", MODES)
def test_s104_read_only(readonly, mode):
    with connect(readonly.socket, mode, "ro") as one:
        assert one.write(0, bytes(512)) == nbd.EPERM
        assert one.call(nbd.TRIM, 0, 512).error == nbd.EPERM
        assert one.call(nbd.WRITE_ZEROES, 0, 512).error == nbd.EPERM
        assert one.call(nbd.FLUSH).error == 0
        assert alive(one)


@pytest.mark.parametrize("mode", MODES)
def test_s105_error_numbers(site, mode):
    with connect(site.socket, mode, "bad") as one:
        assert one.call(nbd.READ, 512 << 10, 512).error == nbd.EIO
        assert one.call(nbd.READ, 0, MIB).error == nbd.EIO
        assert one.write(512 << 10, bytes(512)) == nbd.ENOSPC
        assert alive(one)


def test_s110_s121_kinds_of_replies(site):
    with connect(site.socket, "simple") as one:
        assert not one.call(nbd.READ, 0, 512).chunks and not one.call(99).chunks
    with connect(site.socket) as one:
        assert one.call(nbd.READ, 0, 512).chunks and one.call(nbd.READ, SIZE, 1).chunks
        assert one.call(nbd.READ, 0, 512, flags=1 << 9).chunks  # 121: errors of flags too
    with connect(site.socket, "extended") as one:
        assert one.call(nbd.FLUSH).chunks and one.call(99).chunks


# 3.8 durability


def test_s112_s114_s115_flush_and_fua(site):
    with connect(site.socket, "simple") as one, connect(site.socket, "extended") as two:
        data = one.read(10000, 5000)
        assert one.write(10000, b"a" * 5000) == 0
        assert two.call(nbd.FLUSH).error == 0
        assert two.read(10000, 5000) == b"a" * 5000
        assert site.disk.read_bytes()[10000:15000] == b"a" * 5000
        assert two.write(10000, data, flags=nbd.FUA) == 0
        assert one.read(10000, 5000) == data


def test_s117_a_failed_flush_is_not_forgotten(tmp_path):
    disk = image_random(tmp_path / "disk", 4096)
    server = Server(f"fault:flush-error=EIO,count=1:{disk}")
    server.start()
    with connect(server.socket) as one, connect(server.socket) as two:
        assert one.write(0, bytes(512)) == 0
        assert one.call(nbd.FLUSH).error == nbd.EIO
        assert one.call(nbd.FLUSH).error == nbd.EIO
        assert two.call(nbd.FLUSH).error == nbd.EIO
        assert two.write(0, bytes(512), flags=nbd.FUA) == nbd.EIO
    server.stop(status=1)


def test_s118_overlapping_writes(site):
    with connect(site.socket, "simple", "mem") as one:
        for n in range(64):
            one.request(nbd.WRITE, 1000 + n, 3000, cookie=n, payload=bytes([n]) * 3000)
        assert all(one.result().error == 0 for _ in range(64))
        data = one.read(1000, 64 + 2999)
        assert max(data) < 64
        assert one.call(nbd.WRITE_ZEROES, 0, 8192).error == 0


def test_s119_flush_with_a_range(conn):
    assert conn.call(nbd.FLUSH, 1 << 60, 1000).error in (0, nbd.EINVAL)
    assert alive(conn)


# 3.9 READ


def test_s122_s123_s124_chunks(site):
    for mode in ("structured", "extended"):
        with connect(site.socket, mode, "sparse") as one:
            for offset, length in ((0, 8 * MIB), (100, 5 * MIB), (MIB - 1, 65538), (0, 100)):
                result = one.call(nbd.READ, offset, length)
                at = offset
                assert [chunk.flags for chunk in result.chunks] == \
                    [0] * (len(result.chunks) - 1) + [1]
                for chunk in result.chunks:
                    if chunk.type == nbd.NONE:
                        continue
                    assert struct.unpack(">Q", chunk.data[:8])[0] == at
                    at += struct.unpack(">I", chunk.data[8:])[0] \
                        if chunk.type == nbd.OFFSET_HOLE else len(chunk.data) - 8
                assert at == offset + length


def test_s122_holes_are_sent_as_holes(site):
    with connect(site.socket, "structured", "sparse") as one:
        kinds = [chunk.type for chunk in one.call(nbd.READ, 0, 8 * MIB).chunks]
        assert kinds.count(nbd.OFFSET_HOLE) == 8


@pytest.mark.parametrize("mode", MODES)
def test_s125_s190_a_file_that_shrinks(site, mode):
    size = 2 * MIB
    with connect(site.socket, mode, "shrinks") as one:
        assert one.size == size
        os.truncate(site.shrinks, MIB)
        try:
            assert one.call(nbd.READ, size - 512, 512).error == nbd.EIO
            result = None
            try:
                result = one.call(nbd.READ, MIB - 65536, 131072)
            except Closed:
                pass
            assert result is None or result.error == nbd.EIO
        finally:
            image_random(site.shrinks, size, seed=2)
    with connect(site.socket, mode, "shrinks") as one:
        assert one.read(0, size) == site.shrinks.read_bytes()


@pytest.mark.parametrize("mode", ["structured", "extended"])
@pytest.mark.parametrize("length", [512, 65536, MIB, 8 * MIB])
def test_s126_dont_fragment(site, mode, length):
    with connect(site.socket, mode, "sparse") as one:
        result = one.call(nbd.READ, 0, length, flags=nbd.DF)
        assert [chunk.type for chunk in result.chunks] == [nbd.OFFSET_DATA]


def test_s127_chunk_lengths(site):
    with connect(site.socket, "structured", "sparse") as one:
        for chunk in one.call(nbd.READ, 0, 8 * MIB).chunks:
            if chunk.type == nbd.OFFSET_DATA:
                assert (len(chunk.data) - 8) % 512 == 0 and len(chunk.data) > 16384


@pytest.mark.parametrize("mode", ["structured", "extended"])
def test_s134_error_texts_are_short(site, mode):
    with connect(site.socket, mode, "bad") as one:
        result = one.call(nbd.READ, 512 << 10, 512)
        assert result.text and str(site.disk.parent) not in result.text


# 3.10 WRITE_ZEROES, TRIM, CACHE


@pytest.mark.parametrize("name", ["", "mem", "no-trim"])
@pytest.mark.parametrize("flags", [0, nbd.NO_HOLE, nbd.FUA, nbd.NO_HOLE | nbd.FUA])
def test_s136_s137_write_zeroes(site, name, flags):
    with connect(site.socket, "structured", name) as one:
        flags &= ~nbd.FUA if not one.flags & nbd.SEND_FUA else ~0
        old = one.read(0, 300000)
        assert one.write(0, b"z" * 300000) == 0
        assert one.call(nbd.WRITE_ZEROES, 1001, 200001, flags=flags).error == 0
        assert one.read(0, 300000) == b"z" * 1001 + bytes(200001) + b"z" * 98998
        assert one.write(0, old) == 0


def test_s138_s139_fast_zero(site):
    for name in site.names:
        with connect(site.socket, "structured", name) as one:
            if not one.flags & nbd.SEND_FAST_ZERO:
                continue
            assert one.flags & nbd.SEND_WRITE_ZEROES
            old = one.read(4096, 65536)
            assert one.write(4096, b"q" * 65536) == 0
            error = one.call(nbd.WRITE_ZEROES, 4096, 65536, flags=nbd.FAST_ZERO).error
            assert error in (0, nbd.ENOTSUP)
            if name != "huge":
                assert one.read(4096, 65536) == (b"q" * 65536 if error else bytes(65536))
            assert one.write(4096, old) == 0


@pytest.mark.parametrize("name", ["mem", "no-trim"])
def test_s140_s141_trim(site, name):
    with connect(site.socket, "structured", name) as one:
        assert one.write(0, b"t" * 100000) == 0
        assert one.call(nbd.TRIM, 10001, 50000).error == 0
        data = one.read(0, 100000)
        assert data[:10001] == b"t" * 10001 and data[60001:] == b"t" * 39999
        assert set(data[10001:60001]) <= {0, ord("t")}
        assert one.call(nbd.WRITE_ZEROES, 0, 100000).error == 0


def test_s143_cache(conn):
    assert conn.call(nbd.CACHE, 1, SIZE - 1).error == 0
    assert alive(conn)


# 3.11 BLOCK_STATUS


def test_s147_not_negotiated(site):
    with connect(site.socket, "structured", base=False) as one:
        assert one.call(nbd.BLOCK_STATUS, 0, 512).error == nbd.EINVAL
    with connect(site.socket, "simple") as one:
        assert one.call(nbd.BLOCK_STATUS, 0, 512).error == nbd.EINVAL


@pytest.mark.parametrize("mode", ["structured", "extended"])
def test_s146_s148_s150_s151_s152_block_status(site, mode):
    with connect(site.socket, mode, "sparse") as one:
        extents = one.status(0, 8 * MIB)
        assert sum(length for length, _ in extents) == 8 * MIB
        assert all(length > 0 and length % 512 == 0 for length, _ in extents)
        assert all(a[1] != b[1] for a, b in zip(extents, extents[1:]))
        assert {flags for _, flags in extents} == {0, 3}
        for offset, length in ((1000, 1), (MIB - 5, 10), (0, 100), (7 * MIB, MIB)):
            extents = one.status(offset, length)
            assert sum(size for size, _ in extents) == length


def test_s149_req_one(site):
    with connect(site.socket, "structured", "sparse") as one:
        for offset in (0, 200000, 5 * MIB, 8 * MIB - 1):
            extents = one.status(offset, 8 * MIB - offset, flags=nbd.REQ_ONE)
            assert len(extents) == 1 and extents[0][0] <= 8 * MIB - offset


def test_s154_long_status(site):
    with connect(site.socket, "structured", "huge") as one:
        assert one.status(0, 0xFFFFFFFF) == [(0xFFFFFFFF, 3)]


def test_s152_zeroes_show(site):
    with connect(site.socket, "structured", "mem") as one:
        assert one.write(0, b"d" * MIB) == 0
        assert one.status(0, MIB) == [(MIB, 0)]
        assert one.call(nbd.TRIM, 0, MIB).error == 0
        assert one.status(0, MIB) == [(MIB, 3)]


# 3.12 ends


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["s158_disc", "s160_disc_with_a_range", "b164_half_close"])
def test_s158_s160_b164_all_replies_first(site, mode, how):
    with connect(site.socket, mode, "slow") as one:
        for n in range(32):
            one.request(nbd.READ, (n & 1) * 4096, 512, cookie=n)
        if how == "b164_half_close":
            one.sock.shutdown(socket.SHUT_WR)
        else:
            one.request(nbd.DISC, *((7, 9) if "range" in how else (0, 0)))
        cookies = []
        for _ in range(32):
            reply = one.chunk()
            cookies.append(reply[1] if mode == "simple" else reply.cookie)
            if mode == "simple":
                one.get(512)
        assert sorted(cookies) == list(range(32))
        assert one.ends()


def test_s161_hard_disconnects_are_cleaned_up(site):
    def descriptors():
        return len(os.listdir(f"/proc/{site.pid}/fd"))
    before = descriptors()
    for _ in range(5):
        with connect(site.socket, "simple", "held") as one:
            one.request(nbd.READ, 0, 512)
            one.request(nbd.WRITE, 0, 1000, payload=b"x" * 10)
    wait_until(lambda: descriptors() <= before, what="closed descriptors")


@pytest.mark.threaded
def test_s162_s187_stopping_finishes_what_was_accepted(tmp_path):
    disk = image_random(tmp_path / "disk", 8192)
    gate = tmp_path / "gate"
    with Server(f"fault:hold-read={gate}@0:{disk}") as server:
        with connect(server.socket, "simple") as one, connect(server.socket) as idle:
            assert one.read(4096, 512)
            one.request(nbd.READ, 0, 512, cookie=3)
            one.request(nbd.READ, 4096, 512, cookie=4)
            assert one.result((4096, 512)).cookie == 4  # so the one before it is in flight
            server.program.kill(signal.SIGTERM)
            assert idle.ends()
            gate.touch()
            assert one.result((0, 512)).data == disk.read_bytes()[:512]
            assert one.ends()
            server.wait()


# 3.13 extended headers


def extended(site, name=""):
    """A connection with extended headers agreed and base:allocation chosen."""
    return connect(site.socket, "extended", name)


@pytest.mark.parametrize("first", [False, True])
def test_s165_agreeing_on_extended_headers(raw, first):
    if first:
        assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    assert raw.final(nbd.EXT_HEADERS, b"x") == nbd.INVALID
    assert raw.final(nbd.EXT_HEADERS) == nbd.ACK
    assert raw.final(nbd.EXT_HEADERS) in (nbd.ACK, nbd.INVALID)
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.EXT_HEADER_REQD
    raw.go()
    raw.extended = True
    assert alive(raw)


def test_s165_export_name_is_not_for_extended_headers(raw):
    assert raw.final(nbd.EXT_HEADERS) == nbd.ACK
    raw.option(nbd.EXPORT_NAME, b"")
    assert raw.ends()


def test_s167_compact_requests_end_it(site):
    with extended(site) as one:
        one.send(struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.READ, 1, 0, 512), bytes(4))
        assert one.ends()


def test_s168_replies_echo_the_offset(site):
    with extended(site) as one:
        for command, offset, length in ((nbd.READ, 1234, 70000), (nbd.FLUSH, 0, 0),
                                        (nbd.CACHE, 4096, 10), (nbd.READ, SIZE, 10),
                                        (nbd.BLOCK_STATUS, 512, 9000), (99, 77, 1)):
            for chunk in one.call(command, offset, length).chunks:
                assert chunk.offset == offset


def test_s168_bytes_of_a_reply(readonly):
    with extended(readonly, "ro") as one:
        one.request(nbd.READ, 4096, 8, cookie=0x0102030405060708)
        data = one.get(32 + 8 + 8)
        assert data[:40] == struct.pack(">IHHQQQQ", nbd.EXTENDED, 1, nbd.OFFSET_DATA,
                                        0x0102030405060708, 4096, 16, 4096)
        one.request(nbd.BLOCK_STATUS, 0, 1 << 20, cookie=9)
        data = one.get(32 + 8 + 16)
        assert data == struct.pack(">IHHQQQIIQQ", nbd.EXTENDED, 1, nbd.STATUS_EXT, 9, 0, 24,
                                   struct.unpack(">I", data[32:36])[0], 1, 1 << 20, 0)
        one.request(nbd.FLUSH, cookie=10)
        assert one.get(32) == struct.pack(">IHHQQQ", nbd.EXTENDED, 1, nbd.NONE, 10, 0, 0)


@pytest.mark.parametrize("command", [nbd.READ, nbd.FLUSH, nbd.TRIM, nbd.CACHE, nbd.WRITE_ZEROES,
                                     99])
@pytest.mark.parametrize("length", [1, 512, 300000])
def test_s169_s170_unexpected_payload(site, command, length):
    with extended(site) as one:
        one.raw_request(command, 0, length, nbd.PAYLOAD_LEN, payload=bytes(length))
        result = one.result((0, length) if command == nbd.READ else None)
        assert result.error == nbd.EINVAL
        assert alive(one)


def test_s170_write_without_the_flag(site):
    with extended(site) as one:
        one.raw_request(nbd.WRITE, 0, 512, 0)
        assert one.result().error == nbd.EINVAL
        assert alive(one)


def test_s170_too_much_payload_ends_it(site):
    with extended(site, "huge") as one:
        one.raw_request(nbd.WRITE, 0, 64 * MIB + 1, nbd.PAYLOAD_LEN)
        assert one.ends()


def test_s169_the_flag_is_not_for_compact_mode(site):
    for mode in ("simple", "structured"):
        with connect(site.socket, mode, "mem") as one:
            assert one.write(0, bytes(512), flags=nbd.PAYLOAD_LEN) == nbd.EINVAL
            assert one.call(nbd.FLUSH, flags=nbd.PAYLOAD_LEN).error == nbd.EINVAL
            assert alive(one)


def test_s171_s172_s173_effects_of_exbibytes(site):
    with extended(site, "huge") as one:
        for command in (nbd.WRITE_ZEROES, nbd.TRIM, nbd.CACHE):
            assert one.call(command, 0, HUGE).error == 0
        assert one.status(0, HUGE) == [(HUGE, 3)]
        assert one.call(nbd.READ, 0, 1 << 40).error == nbd.EOVERFLOW
        assert one.call(nbd.TRIM, 1, HUGE).error == nbd.EINVAL
        assert alive(one)


def test_s174_status_of_chosen_contexts(site):
    with Raw(site.socket) as one:
        assert one.final(nbd.EXT_HEADERS) == nbd.ACK
        base = one.set_base("sparse")
        one.go("sparse")
        one.extended = True
        def ask(*ids, effect=MIB, extra=b""):
            payload = struct.pack(f">Q{len(ids)}I", effect, *ids) + extra
            one.raw_request(nbd.BLOCK_STATUS, 0, len(payload), nbd.PAYLOAD_LEN, payload=payload)
            return one.result()
        assert sum(n for n, _ in one.status_of(ask(base).chunks[0])) == MIB
        assert ask(base, base).error == nbd.EINVAL
        assert ask(base + 1).error == nbd.EINVAL
        assert ask(base, base + 1).error == nbd.EINVAL
        assert ask(base, extra=b"x").error == nbd.EINVAL
        assert ask(base, effect=8 * MIB + 1).error == nbd.EINVAL
        assert ask(base, effect=1 << 63).error == nbd.EINVAL
        assert ask(*([base] * 30000)).error == nbd.EINVAL
        assert alive(one)


def test_s174_not_without_contexts(site):
    with connect(site.socket, "extended", base=False) as one:
        one.raw_request(nbd.BLOCK_STATUS, 0, 12, nbd.PAYLOAD_LEN, payload=bytes(12))
        assert one.result().error == nbd.EINVAL
        assert alive(one)


def test_s175_no_ext_header_reqd_for_base(raw):
    assert raw.final(nbd.STRUCTURED_REPLY) == nbd.ACK
    assert raw.final(nbd.LIST_META, meta_data("", ["base:allocation"])) == nbd.ACK
    assert raw.final(nbd.SET_META, meta_data("", ["base:allocation"])) == nbd.ACK


# 3.16 what is easily forgotten


def test_s184_one_client_too_many_is_told(tmp_path):
    disk = image_random(tmp_path / "disk", 4096)
    with Server("--max-connections", "1", disk) as server:
        with connect(server.socket):
            with Raw(server.socket) as two:
                reply = two.ask(nbd.GO, name_data(""))[-1]
                assert reply.type == nbd.POLICY and reply.data
        def free():
            with Raw(server.socket) as three:
                return three.final(nbd.GO, name_data("")) == nbd.ACK
        wait_until(free, what="a place for the next client")


def test_s186_many_connections(site):
    many = [Raw(site.socket) for _ in range(200)]
    try:
        for one in many:
            one.go("mem")
        for one in many:
            one.request(nbd.READ, 0, 4096)
        for one in many:
            assert one.result((0, 4096)).error == 0
    finally:
        for one in many:
            one.sock.close()


@pytest.mark.parametrize("mode", MODES)
def test_s192_odd_sizes_are_exact(tmp_path, mode):
    for size in (1, 513, 1537, 100001):
        disk = image_random(tmp_path / "disk", size)
        with Server(disk) as server, connect(server.socket, mode) as one:
            assert one.size == size
            assert one.read(0, size) == disk.read_bytes()
            assert one.write(size - 1, b"!") == 0
            assert one.call(nbd.WRITE_ZEROES, 0, size).error == 0
            assert one.call(nbd.READ, 0, size + 1).error == nbd.EINVAL
        assert disk.read_bytes() == bytes(size)


def test_s194_names_in_the_log_are_escaped(tmp_path):
    disk = image_random(tmp_path / "disk", 4096)
    with Server("-vv", disk) as server, Raw(server.socket) as one:
        one.final(nbd.GO, name_data(b"\x1b[31m\n\xff"))
        one.final(nbd.ABORT)
        assert "\x1b" not in server.err()


def test_s195_s196_a_client_that_does_not_read(site):
    with connect(site.socket, "structured", "huge") as lazy, connect(site.socket) as other:
        for n in range(300):
            lazy.request(nbd.READ, n * MIB, MIB, flags=nbd.DF, cookie=n)
        for _ in range(50):
            assert alive(other)
        assert site.memory_kib() < 600 << 10
        seen = set()
        for _ in range(300):
            chunk = lazy.chunk()
            assert len(chunk.data) == MIB + 8
            seen.add(chunk.cookie)
        assert len(seen) == 300


def test_s189_the_socket(tmp_path, short_tmp):
    disk = image_random(tmp_path / "disk", 4096)
    with Server("--socket-mode", "600", disk) as server:
        assert os.stat(server.socket).st_mode & 0o777 == 0o600


def test_zz_the_server_is_well(site):
    with connect(site.socket) as one:
        assert alive(one)
    assert site.program.running()
