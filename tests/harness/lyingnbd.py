"""
An NBD server that is honest until a test tells it not to be; for tests of the client.

    def too_long(c, r):                             # c: the connection, r: the request
        c.data(r, r.offset, bytes(r.length + 1))

    with LyingServer(on_request={READ: too_long}) as server:
        run("penstock", "copy", server.uri(), "out", status=1)

What a hook does not handle an honest server does: negotiation of structured replies, extended
headers and base:allocation as far as the arguments allow, and a disk in memory. One thread a
connection. What the clients did is in server.log, a list of events of all connections in order:
("flags", n), ("option", number, data), ("request", Request), ("end", "clean" or "cut").
"""

import collections
import contextlib
import os
import shutil
import socket
import struct
import tempfile
import threading

from .process import wait_until
from .server import nbd_uri

INIT_MAGIC = 0x4e42444d41474943
OPTION_MAGIC = 0x49484156454f5054
REPLY_MAGIC = 0x3e889045565a9
OLDSTYLE_MAGIC = 0x00420281861253
REQUEST = 0x25609513
REQUEST_EXT = 0x21e41c71
SIMPLE = 0x67446698
STRUCTURED = 0x668e33ef
EXTENDED = 0x6e8a278c

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_INFO, OPT_GO = 1, 2, 3, 6, 7
OPT_STRUCTURED, OPT_LIST_META, OPT_SET_META, OPT_EXTENDED = 8, 9, 10, 11
ACK, SERVER, INFO, META = 1, 2, 3, 4
ERROR = 1 << 31
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_TLS_REQD = ERROR | 1, ERROR | 2, ERROR | 3, ERROR | 5
ERR_UNKNOWN, ERR_SHUTDOWN = ERROR | 6, ERROR | 7

READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = 1, 2, 4, 8, 16, 32
NONE, DATA, HOLE, STATUS_CHUNK, STATUS_EXT = 0, 1, 2, 5, 6
ERROR_CHUNK, ERROR_OFFSET = 0x8001, 0x8002
DONE = 1

HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, ROTATIONAL = 1, 2, 4, 8, 16
SEND_TRIM, SEND_ZEROES, SEND_DF, MULTI_CONN, SEND_CACHE, SEND_FAST_ZERO = \
    32, 64, 128, 256, 1024, 2048

CONTEXT_ID = 0xabcd

Request = collections.namedtuple("Request", "connection magic flags type cookie offset length")


class Gone(Exception):
    """The client has closed the connection, or a hook wants it to end."""


class Connection:
    """One client. Hooks speak through it."""

    def __init__(self, server, sock, number):
        self.server = server
        self.sock = sock
        self.number = number
        self.mode = SIMPLE
        self.context = False
        self.fixed = self.no_zeroes = False

    # --- bytes ---

    def send(self, *parts):
        data = b"".join(parts)
        piece = self.server.piece or len(data)
        for at in range(0, len(data), max(piece, 1)):
            try:
                self.sock.sendall(data[at:at + piece])
            except OSError:
                raise Gone from None

    def receive(self, length):
        data = bytearray()
        while len(data) < length:
            try:
                more = self.sock.recv(length - len(data))
            except OSError:
                raise Gone from None
            if not more:
                raise Gone
            data += more
        return bytes(data)

    def hang_up(self):
        raise Gone

    def silence(self):
        """Sends nothing more and waits until the client goes."""
        while True:
            self.receive(1)

    # --- handshake ---

    def reply(self, option, kind, data=b""):
        self.send(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(data)), data)

    def info_export(self, option, size=None, flags=None):
        size = self.server.size if size is None else size
        flags = self.server.flags if flags is None else flags
        self.reply(option, INFO, struct.pack(">HQH", 0, size, flags))

    def info_blocks(self, option, least, preferred, most):
        self.reply(option, INFO, struct.pack(">HIII", 3, least, preferred, most))

    def handshake(self):
        if self.server.greeting is not None:
            self.send(self.server.greeting)
            if len(self.server.greeting) < 18:
                self.silence()
        else:
            self.send(struct.pack(">QQH", INIT_MAGIC, OPTION_MAGIC, self.server.handshake_flags))
        flags, = struct.unpack(">I", self.receive(4))
        self.server.note("flags", flags)
        self.no_zeroes = flags & self.server.handshake_flags & 2
        while True:
            magic, option, length = struct.unpack(">QII", self.receive(16))
            assert magic == OPTION_MAGIC and length <= 65536, "the client lost its way"
            data = self.receive(length)
            self.server.note("option", option, data)
            self.no_pipelining(option)
            hook = self.server.on_option.get(option)
            done = hook(self, data) if hook else self.honest_option(option, data)
            if done:
                return

    def no_pipelining(self, option):
        """Nothing may follow an option before it is answered."""
        with contextlib.suppress(BlockingIOError):
            if self.sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                self.server.pipelined.append(option)

    def honest_option(self, option, data):
        if option == OPT_ABORT:
            self.reply(option, ACK)
            raise Gone
        if option == OPT_EXPORT_NAME:
            self.send(struct.pack(">QH", self.server.size, self.server.flags),
                      b"" if self.no_zeroes else bytes(124))
            return True
        if option == OPT_GO:
            return self.honest_go(option)
        if option == OPT_STRUCTURED and self.server.structured:
            self.mode = STRUCTURED
            self.reply(option, ACK)
        elif option == OPT_EXTENDED and self.server.extended:
            self.mode = EXTENDED
            self.reply(option, ACK)
        elif option == OPT_SET_META and self.server.context:
            self.context = True
            self.reply(option, META, struct.pack(">I", CONTEXT_ID) + b"base:allocation")
            self.reply(option, ACK)
        elif option == OPT_LIST:
            self.reply(option, SERVER, struct.pack(">I", 4) + b"disk" + b"words")
            self.reply(option, ACK)
        else:
            self.reply(option, ERR_UNSUP)
        return False

    def honest_go(self, option):
        if self.server.blocks:
            self.info_blocks(option, *self.server.blocks)
        self.info_export(option)
        self.reply(option, ACK)
        return True

    # --- transmission ---

    def simple(self, cookie, error=0, data=b""):
        self.send(struct.pack(">IIQ", SIMPLE, error, getattr(cookie, "cookie", cookie)), data)

    def chunk(self, r, kind, data=b"", flags=DONE, cookie=None, length=None, offset=None):
        cookie = r.cookie if cookie is None else cookie
        length = len(data) if length is None else length
        if self.mode == EXTENDED:
            offset = r.offset if offset is None else offset
            self.send(struct.pack(">IHHQQQ", EXTENDED, flags, kind, cookie, offset, length), data)
        else:
            self.send(struct.pack(">IHHQI", STRUCTURED, flags, kind, cookie, length), data)

    def data(self, r, offset, data, flags=DONE):
        self.chunk(r, DATA, struct.pack(">Q", offset) + data, flags)

    def hole(self, r, offset, length, flags=DONE):
        self.chunk(r, HOLE, struct.pack(">QI", offset, length), flags)

    def error(self, r, error, text=b"", flags=DONE, kind=ERROR_CHUNK, tail=b""):
        self.chunk(r, kind, struct.pack(">IH", error, len(text)) + text + tail, flags)

    def status(self, r, *extents, flags=DONE, context=CONTEXT_ID):
        if self.mode == EXTENDED:
            self.chunk(r, STATUS_EXT, struct.pack(">II", context, len(extents)) + b"".join(
                struct.pack(">QQ", *e) for e in extents), flags)
        else:
            self.chunk(r, STATUS_CHUNK, struct.pack(">I", context) + b"".join(
                struct.pack(">II", *e) for e in extents), flags)

    def take_request(self):
        extended = self.mode == EXTENDED
        head = self.receive(32 if extended else 28)
        r = Request(self, *struct.unpack(">IHHQQQ" if extended else ">IHHQQI", head))
        expected = REQUEST_EXT if extended else REQUEST
        assert r.magic == expected, f"request magic {r.magic:#x}"
        payload = self.receive(r.length) if r.type == WRITE else b""
        self.server.note("request", r)
        return r, payload

    def honest_request(self, r, payload):
        server = self.server
        if r.type == WRITE:
            server.write(r.offset, payload)
        elif r.type == ZEROES:
            server.write(r.offset, bytes(min(r.length, server.size - r.offset)))
        if r.type == READ and self.mode == SIMPLE:
            self.simple(r.cookie, data=server.read(r.offset, r.length))
        elif r.type == READ:
            self.data(r, r.offset, server.read(r.offset, r.length))
        elif r.type == STATUS:
            self.status(r, (r.length, 0))
        elif self.mode == EXTENDED:
            self.chunk(r, NONE)
        else:
            self.simple(r.cookie)

    def transmission(self):
        while True:
            r, payload = self.take_request()
            if r.type == DISC:
                self.server.note("end", "clean" if self.at_end() else "more after DISC")
                return
            hook = self.server.on_request.get(r.type)
            if hook:
                hook(self, r, payload) if r.type == WRITE else hook(self, r)
            else:
                self.honest_request(r, payload)

    def at_end(self):
        try:
            return not self.sock.recv(1)
        except OSError:
            return True

    def run(self):
        try:
            self.handshake()
            self.transmission()
        except Gone:
            self.server.note("end", "cut")
        except Exception as wrong:  # a client that is wrong, or a hook: the test fails
            self.server.wrong.append(repr(wrong))
        finally:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            self.sock.close()


class LyingServer:
    """Arguments: what it offers, and hooks instead of honesty."""

    def __init__(self, size=1 << 20, flags=HAS_FLAGS | SEND_FLUSH, structured=True, extended=False,
                 context=False, blocks=None, handshake_flags=3, greeting=None, piece=0,
                 content=None, on_option=None, on_request=None, tcp=False, abstract=False):
        self.size = size
        self.flags = flags
        self.structured = structured
        self.extended = extended
        self.context = context
        self.blocks = blocks
        self.handshake_flags = handshake_flags
        self.greeting = greeting
        self.piece = piece
        self.on_option = on_option or {}
        self.on_request = on_request or {}
        self.disk = bytearray(content or b"")
        self.log = []
        self.pipelined = []
        self.wrong = []  # what clients did against the protocol
        self._tcp = tcp
        self._abstract = abstract
        self._lock = threading.Lock()
        self._threads = []
        self._connections = []

    def note(self, *event):
        with self._lock:
            self.log.append(event)

    def read(self, offset, length):
        data = bytes(self.disk[offset:offset + length])
        return data + bytes(length - len(data))

    def write(self, offset, data):
        with self._lock:
            end = offset + len(data)
            if end > len(self.disk):
                self.disk.extend(bytes(end - len(self.disk)))
            self.disk[offset:end] = data

    # --- what the clients did ---

    def options(self):
        return [event[1] for event in self.log if event[0] == "option"]

    def requests(self, kind=None):
        return [event[1] for event in self.log
                if event[0] == "request" and (kind is None or event[1].type == kind)]

    def connections(self):
        """How many have come so far."""
        return len(self._threads)

    def ends(self):
        """How each connection ended, once all have."""
        wait_until(lambda: not any(t.is_alive() for t in self._threads), what="the clients' end")
        return [event[1] for event in self.log if event[0] == "end"]

    # --- life ---

    def uri(self, export="disk"):
        if self._tcp:
            return f"nbd://127.0.0.1:{self._listener.getsockname()[1]}/{export}"
        return nbd_uri(self.socket, export)

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self._tcp:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, sock, len(self._connections))
            thread = threading.Thread(target=connection.run, daemon=True)
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="ps", dir="/tmp")
        self.socket = os.path.join(self.folder, "s")
        if self._tcp:
            self._listener = socket.create_server(("127.0.0.1", 0))
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if self._abstract:
                self.socket = os.path.basename(self.folder)
                self._listener.bind("\0" + self.socket)
            else:
                self._listener.bind(self.socket)
            self._listener.listen(64)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, kind, value, traceback):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(60)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind is None:
            assert not self.wrong, self.wrong
