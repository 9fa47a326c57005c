"""
An NFSv3 and MOUNT server (RFC 1813) that is honest until a test tells it not to be.

    def too_much(call):
        call.read_reply(bytes(call.length + 4))

    with LyingNfs({"disk": content}, {READ: too_much}) as server:
        run("penstock", "copy", server.url("disk"), "out", status=1)

A hook gets each call of its procedure; when it returns HONEST the call is answered honestly.
call.number counts the calls of that procedure, from 0. Both programs are at one port of 127.0.0.1,
one thread a connection; what was asked is in server.log, a list of calls in order.
"""

import collections
import contextlib
import socket
import struct
import threading

from .process import wait_until

PROGRAM_NFS, PROGRAM_MOUNT = 100003, 100005
MNT = "mnt"
GETATTR, SETATTR, LOOKUP, READ, WRITE, CREATE, REMOVE, FSINFO, COMMIT = 1, 2, 3, 6, 7, 8, 12, 19, 21
UNSTABLE, DATA_SYNC, FILE_SYNC = 0, 1, 2
REGULAR, FOLDER, LINK = 1, 2, 5

NOENT, IO, ACCES, EXIST, ISDIR, FBIG, NOSPC, ROFS, DQUOT, STALE, JUKEBOX = \
    2, 5, 13, 17, 21, 27, 28, 30, 69, 70, 10008

HONEST = object()
ROOT = b"the root"
# How many optional attributes follow a status that is not OK.
FAILURE_WORDS = {GETATTR: 0, SETATTR: 2, LOOKUP: 1, READ: 1, WRITE: 2, CREATE: 2, REMOVE: 2,
                 FSINFO: 1, COMMIT: 2, MNT: 0}


class Gone(Exception):
    """The connection has ended, or is to."""


class Reader:
    """XDR out of bytes."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, length):
        assert self.at + length <= len(self.data), "the client's call is too short"
        self.at += length
        return self.data[self.at - length:self.at]

    def u32(self):
        return struct.unpack(">I", self.take(4))[0]

    def u64(self):
        return struct.unpack(">Q", self.take(8))[0]

    def opaque(self):
        length = self.u32()
        data = self.take(length)
        self.take(-length % 4)
        return data


def u32(*values):
    return struct.pack(f">{len(values)}I", *values)


def u64(value):
    return struct.pack(">Q", value)


def opaque(data):
    return u32(len(data)) + data + bytes(-len(data) % 4)


class Call:
    """One call: what it asks, and ways to answer it."""

    def __init__(self, server, connection, xid, procedure, number):
        self.server = server
        self.connection = connection
        self.xid = xid
        self.procedure = procedure
        self.number = number
        self.handle = self.name = self.data = b""
        self.offset = self.length = self.stable = self.how = 0
        self.size = None

    def parse(self, reader):
        if self.procedure == MNT:
            self.name = reader.opaque()
            return
        self.handle = reader.opaque()
        if self.procedure in (LOOKUP, CREATE, REMOVE):
            self.name = reader.opaque()
        if self.procedure == CREATE:
            self.how = reader.u32()
        elif self.procedure in (READ, COMMIT):
            self.offset, self.length = reader.u64(), reader.u32()
        elif self.procedure == WRITE:
            self.offset, self.length, self.stable = reader.u64(), reader.u32(), reader.u32()
            self.data = reader.opaque()
            assert len(self.data) == self.length, "a WRITE whose lengths differ"
        elif self.procedure == SETATTR:
            for _ in range(3):  # mode, uid, gid
                if reader.u32():
                    reader.u32()
            if reader.u32():
                self.size = reader.u64()

    # --- answers ---

    def record(self, data):
        """These bytes as one record."""
        self.connection.send(u32(0x80000000 | len(data)) + data)

    def reply(self, *parts):
        """An accepted call's result."""
        self.record(u32(self.xid, 1, 0, 0, 0, 0) + b"".join(parts))

    def status(self, status):
        self.reply(u32(status), bytes(4 * FAILURE_WORDS[self.procedure]))

    def read_reply(self, data, count=None, eof=False):
        self.reply(u32(0, 0, len(data) if count is None else count, int(eof)), opaque(data))

    def write_reply(self, count=None, committed=None, verifier=None):
        self.reply(u32(0, 0, 0, self.length if count is None else count,
                       self.stable if committed is None else committed),
                   verifier or self.server.verifier)

    def commit_reply(self, verifier=None):
        self.reply(u32(0, 0, 0), verifier or self.server.verifier)

    def attributes(self, kind, size):
        return u32(kind, 0o600, 1, 0, 0) + u64(size) * 2 + bytes(8) + u64(1) * 2 + bytes(24)

    def drop(self):
        """Hangs up."""
        raise Gone

    def silence(self):
        """No answer to this one, nor to any other on this connection."""
        with contextlib.suppress(OSError):
            while self.connection.sock.recv(1 << 20):
                pass
        raise Gone

    def store(self):
        """What an honest server does with a WRITE, short of answering."""
        self.server.write(self.handle, self.offset, self.data)


class Connection:
    def __init__(self, server, sock):
        self.server = server
        self.sock = sock

    def send(self, data):
        try:
            self.sock.sendall(data)
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

    def take_call(self):
        mark, = struct.unpack(">I", self.receive(4))
        assert mark & 0x80000000, "a record in several pieces"
        reader = Reader(self.receive(mark & 0x7fffffff))
        xid, kind, version, program, _, procedure = struct.unpack(">6I", reader.take(24))
        assert (kind, version) == (0, 2), "no call of RPC version 2"
        for _ in range(2):  # credentials, verifier
            reader.u32()
            reader.opaque()
        if program == PROGRAM_MOUNT:
            assert procedure == 1, f"MOUNT procedure {procedure}"
            procedure = MNT
        else:
            assert program == PROGRAM_NFS, f"program {program}"
        call = self.server.note(self, xid, procedure)
        call.parse(reader)
        return call

    def run(self):
        try:
            while True:
                call = self.take_call()
                hook = self.server.hooks.get(call.procedure)
                if hook is None or hook(call) is HONEST:
                    self.server.answer(call)
        except Gone:
            pass
        except Exception as wrong:  # a client that is wrong, or a hook: the test fails
            self.server.wrong.append(repr(wrong))
        finally:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            self.sock.close()


class LyingNfs:
    """files: name: content of the only folder, /export."""

    def __init__(self, files=None, hooks=None, read_max=1 << 20, write_max=1 << 20):
        self.files = {name.encode(): bytearray(data) for name, data in (files or {}).items()}
        self.hooks = hooks or {}
        self.read_max = read_max
        self.write_max = write_max
        self.verifier = b"verifier"
        self.log = []
        self.wrong = []  # what clients did against the protocol
        self._numbers = collections.Counter()
        self._lock = threading.Lock()
        self._connections = []
        self._threads = []

    def note(self, connection, xid, procedure):
        with self._lock:
            call = Call(self, connection, xid, procedure, self._numbers[procedure])
            self._numbers[procedure] += 1
            self.log.append(call)
        return call

    def calls(self, procedure):
        with self._lock:
            return [call for call in self.log if call.procedure == procedure]

    def wait_for(self, procedure):
        wait_until(lambda: self.calls(procedure), what=f"a call of procedure {procedure}")

    def content(self, name):
        with self._lock:
            return bytes(self.files[name.encode()])

    # --- honesty ---

    def write(self, handle, offset, data):
        with self._lock:
            file = self.files[handle]
            if offset + len(data) > len(file):
                file.extend(bytes(offset + len(data) - len(file)))
            file[offset:offset + len(data)] = data

    def answer(self, call):
        if call.procedure == MNT:
            if call.name == b"/export":
                call.reply(u32(0), opaque(ROOT), u32(1, 1))
            else:
                call.status(NOENT)
        elif call.procedure in (LOOKUP, CREATE, REMOVE):
            self.answer_name(call)
        elif call.handle != ROOT and call.handle not in self.files:
            call.status(STALE)
        else:
            self.answer_file(call)

    def answer_name(self, call):
        with self._lock:
            known = call.name in self.files
            if call.procedure == CREATE and not known:
                self.files[call.name] = bytearray()
            elif call.procedure == REMOVE:
                self.files.pop(call.name, None)
        if call.procedure == REMOVE:
            call.reply(u32(0, 0, 0))
        elif call.procedure == CREATE and known:
            call.status(EXIST)
        elif call.procedure == CREATE:
            call.reply(u32(0, 1), opaque(call.name), u32(0, 0, 0))
        elif known:
            call.reply(u32(0), opaque(call.name), u32(0, 0))
        else:
            call.status(NOENT)

    def answer_file(self, call):
        if call.procedure == FSINFO:
            call.reply(u32(0, 0, self.read_max, self.read_max, 1, self.write_max, self.write_max, 1,
                           4096), u64(1 << 62), u32(0, 1, 0x1b))
        elif call.procedure == GETATTR:
            call.reply(u32(0), call.attributes(REGULAR, len(self.files[call.handle])))
        elif call.procedure == SETATTR:
            with self._lock:
                file = self.files[call.handle]
                file.extend(bytes(max(0, call.size - len(file))))
                del file[call.size:]
            call.reply(u32(0, 0, 0))
        elif call.procedure == READ:
            with self._lock:
                file = self.files[call.handle]
                data = bytes(file[call.offset:call.offset + call.length])
                eof = call.offset + len(data) >= len(file)
            call.read_reply(data, eof=eof)
        elif call.procedure == WRITE:
            call.store()
            call.write_reply()
        elif call.procedure == COMMIT:
            call.commit_reply()
        else:
            raise AssertionError(f"procedure {call.procedure}")

    # --- life ---

    def url(self, name, **options):
        port = self._listener.getsockname()[1]
        more = "".join(f"&{key.replace('_', '-')}={value}" for key, value in options.items())
        return f"nfs://127.0.0.1/export/{name}?nfsport={port}&mountport={port}{more}"

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, sock)
            thread = threading.Thread(target=connection.run, daemon=True)
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
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
        if kind is None:
            assert not self.wrong, self.wrong
