"""
A byte-level NBD client for tests: it sends what it is told, right or wrong, and returns what comes.
"""

import collections
import socket
import struct

from .process import time_limit

INIT = 0x4E42444D41474943
OPTION = 0x49484156454F5054
OPTION_REPLY = 0x0003E889045565A9
REQUEST = 0x25609513
REQUEST_EXT = 0x21E41C71
SIMPLE = 0x67446698
STRUCTURED = 0x668E33EF
EXTENDED = 0x6E8A278C

EXPORT_NAME, ABORT, LIST, PEEK, STARTTLS, INFO, GO, STRUCTURED_REPLY, LIST_META, SET_META, \
    EXT_HEADERS = range(1, 12)
ACK, SERVER, INFO_REPLY, META_CONTEXT = 1, 2, 3, 4
ERR = 1 << 31
UNSUP, POLICY, INVALID, PLATFORM, TLS_REQD, UNKNOWN, SHUTDOWN, BLOCK_SIZE_REQD, TOO_BIG, \
    EXT_HEADER_REQD = (ERR + n for n in range(1, 11))
INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = range(4)
READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = (1 << n for n in range(6))
NONE, OFFSET_DATA, OFFSET_HOLE, STATUS, STATUS_EXT = 0, 1, 2, 5, 6
ERROR, ERROR_OFFSET = 0x8001, 0x8002
EPERM, EIO, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP = 1, 5, 22, 28, 75, 95
HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, ROTATIONAL, SEND_TRIM, SEND_WRITE_ZEROES, SEND_DF, \
    MULTI_CONN, _, SEND_CACHE, SEND_FAST_ZERO, STATUS_PAYLOAD = (1 << n for n in range(13))

Reply = collections.namedtuple("Reply", "type data")
Chunk = collections.namedtuple("Chunk", "flags type cookie offset data")
Result = collections.namedtuple("Result", "error data chunks cookie text")


class Closed(Exception):
    """The server has closed the connection."""


def name_data(name, types=()):
    """The data of INFO and GO."""
    name = name.encode() if isinstance(name, str) else name
    return struct.pack(f">I{len(name)}sH{len(types)}H", len(name), name, len(types), *types)


def meta_data(name, queries):
    """The data of LIST_META_CONTEXT and SET_META_CONTEXT."""
    name = name.encode()
    data = struct.pack(f">I{len(name)}sI", len(name), name, len(queries))
    for query in queries:
        query = query.encode() if isinstance(query, str) else query
        data += struct.pack(f">I{len(query)}s", len(query), query)
    return data


class Raw:
    """One connection. The mode (compact, structured, extended) follows what was agreed."""

    def __init__(self, path, flags=3, greet=True):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(time_limit(60))
        self.sock.connect(path)
        self.structured = self.extended = False
        self.size = self.flags = None
        self.handshake_flags = None
        if greet:
            magic, option, self.handshake_flags = struct.unpack(">QQH", self.get(18))
            assert (magic, option) == (INIT, OPTION)
            self.send(struct.pack(">I", flags))

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.sock.close()

    def send(self, *parts):
        """All of it; a server that has hung up is noticed when its answer is read."""
        try:
            self.sock.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def get(self, count):
        """Exactly count bytes."""
        parts = []
        while count > 0:
            try:
                data = self.sock.recv(min(count, 1 << 20))
            except ConnectionResetError:
                data = b""
            if not data:
                raise Closed
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def ends(self):
        """Nothing more comes, and the connection is closed."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    # handshake

    def option(self, number, data=b"", length=None):
        """Sends an option; the length may be a lie."""
        self.send(struct.pack(">QII", OPTION, number, len(data) if length is None else length),
                  data)

    def reply(self, number):
        """The next reply to option `number`."""
        magic, option, kind, length = struct.unpack(">QIII", self.get(20))
        assert magic == OPTION_REPLY
        assert option == number
        assert length <= 1 << 20
        return Reply(kind, self.get(length))

    def replies(self, number):
        """All replies up to the final one."""
        found = []
        while not found or (found[-1].type != ACK and not found[-1].type & ERR):
            found.append(self.reply(number))
        return found

    def ask(self, number, data=b"", length=None):
        """An option and all its replies."""
        self.option(number, data, length)
        return self.replies(number)

    def final(self, number, data=b"", length=None):
        """The type of the final reply."""
        return self.ask(number, data, length)[-1].type

    def go(self, name="", types=()):
        """NBD_OPT_GO; the information by type."""
        replies = self.ask(GO, name_data(name, types))
        assert replies[-1].type == ACK, replies
        return self.take_info(replies)

    def take_info(self, replies):
        """{type: data} of INFO replies; size and flags are remembered."""
        found = {}
        for reply in replies[:-1]:
            assert reply.type == INFO_REPLY
            kind = struct.unpack(">H", reply.data[:2])[0]
            assert kind not in found
            found[kind] = reply.data[2:]
        self.size, self.flags = struct.unpack(">QH", found[INFO_EXPORT])
        return found

    def set_base(self, name=""):
        """Selects base:allocation; its ID."""
        replies = self.ask(SET_META, meta_data(name, ["base:allocation"]))
        assert [reply.type for reply in replies] == [META_CONTEXT, ACK]
        assert replies[0].data[4:] == b"base:allocation"
        return struct.unpack(">I", replies[0].data[:4])[0]

    def export_name(self, name=b"", zeroes=False):
        """NBD_OPT_EXPORT_NAME."""
        self.option(EXPORT_NAME, name)
        self.size, self.flags = struct.unpack(">QH", self.get(10))
        if zeroes:
            assert self.get(124) == bytes(124)

    # transmission

    def request(self, command, offset=0, length=0, flags=0, cookie=1, payload=b""):
        """Sends a request; WRITE in extended mode sets PAYLOAD_LEN itself."""
        if self.extended and command == WRITE:
            flags |= PAYLOAD_LEN
        self.raw_request(command, offset, length, flags, cookie, payload)

    def raw_request(self, command, offset=0, length=0, flags=0, cookie=1, payload=b""):
        """Sends a request exactly as said."""
        if self.extended:
            header = struct.pack(">IHHQQQ", REQUEST_EXT, flags, command, cookie, offset, length)
        else:
            header = struct.pack(">IHHQQI", REQUEST, flags, command, cookie, offset, length)
        self.send(header, payload)

    def chunk(self):
        """The next simple reply (an int: its error; and its cookie) or chunk."""
        magic = struct.unpack(">I", self.get(4))[0]
        if magic == SIMPLE:
            assert not self.extended
            return struct.unpack(">IQ", self.get(12))
        if magic == STRUCTURED:
            assert self.structured and not self.extended
            flags, kind, cookie, length = struct.unpack(">HHQI", self.get(16))
            offset = None
        else:
            assert magic == EXTENDED and self.extended, hex(magic)
            flags, kind, cookie, offset, length = struct.unpack(">HHQQQ", self.get(28))
        assert length <= 65 << 20
        assert flags & ~1 == 0
        return Chunk(flags, kind, cookie, offset, self.get(length))

    def result(self, read=None):
        """The whole answer to one request, when no other is in flight. read: (offset, length)."""
        first = self.chunk()
        if not isinstance(first, Chunk):
            error, cookie = first
            assert not (self.structured and read), "a simple reply to READ"
            data = self.get(read[1]) if read and not error else b""
            return Result(error, data, [], cookie, "")
        chunks = [first]
        while not chunks[-1].flags & 1:
            chunks.append(self.chunk())
        return self.judge(chunks, read)

    def judge(self, chunks, read):
        """What chunks say; they must be in order among themselves."""
        error, text = 0, ""
        start, length = read or (0, 0)
        content = any(chunk.type in (OFFSET_DATA, OFFSET_HOLE) for chunk in chunks)
        data, covered = bytearray(length if content else 0), 0
        assert len({chunk.cookie for chunk in chunks}) == 1
        for chunk in chunks:
            if chunk.type in (OFFSET_DATA, OFFSET_HOLE):
                at = struct.unpack(">Q", chunk.data[:8])[0] - start
                if chunk.type == OFFSET_DATA:
                    piece = chunk.data[8:]
                else:
                    assert len(chunk.data) == 12
                    piece = bytes(struct.unpack(">I", chunk.data[8:])[0])
                assert piece and 0 <= at and at + len(piece) <= length
                data[at:at + len(piece)] = piece
                covered += len(piece)
            elif chunk.type in (ERROR, ERROR_OFFSET):
                error, size = struct.unpack(">IH", chunk.data[:6])
                assert error != 0
                text = chunk.data[6:6 + size].decode()
                assert len(text) == size and size < 900
                tail = chunk.data[6 + size:]
                assert len(tail) == (8 if chunk.type == ERROR_OFFSET else 0)
            elif chunk.type == NONE:
                assert chunk.flags & 1 and not chunk.data
        if read and not error:
            assert covered == length
        return Result(error, bytes(data), chunks, chunks[0].cookie, text)

    def call(self, command, offset=0, length=0, flags=0, cookie=1, payload=b""):
        """A request and its answer."""
        self.request(command, offset, length, flags, cookie, payload)
        return self.result((offset, length) if command == READ else None)

    def read(self, offset, length, flags=0):
        """The bytes; it must succeed."""
        result = self.call(READ, offset, length, flags)
        assert result.error == 0
        return result.data

    def write(self, offset, data, flags=0):
        """Its error number."""
        return self.call(WRITE, offset, len(data), flags, payload=data).error

    def status(self, offset, length, flags=0):
        """[(length, flags)] of the one context."""
        result = self.call(BLOCK_STATUS, offset, length, flags)
        assert result.error == 0 and len(result.chunks) == 1
        return self.status_of(result.chunks[0])

    def status_of(self, chunk):
        """[(length, flags)] in a chunk."""
        if self.extended:
            assert chunk.type == STATUS_EXT
            count = struct.unpack(">I", chunk.data[4:8])[0]
            assert len(chunk.data) == 8 + 16 * count
            numbers = struct.unpack(f">{2 * count}Q", chunk.data[8:])
        else:
            assert chunk.type == STATUS
            numbers = struct.unpack(f">{(len(chunk.data) - 4) // 4}I", chunk.data[4:])
        pairs = list(zip(numbers[::2], numbers[1::2]))
        assert pairs
        return pairs


def connect(path, mode="structured", name="", base=True):
    """A connection in the transmission phase; mode: simple, structured or extended."""
    raw = Raw(path)
    if mode != "simple":
        number = STRUCTURED_REPLY if mode == "structured" else EXT_HEADERS
        assert raw.final(number) == ACK
        if base:
            raw.set_base(name)
    raw.go(name)
    raw.structured = mode == "structured"
    raw.extended = mode == "extended"
    return raw
