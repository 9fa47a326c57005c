"""penstock serve: what clients see."""

import contextlib
import os
import re
import select
import shlex
import shutil
import socket
import stat

import nbd
import pytest

from harness import PENSTOCK, Server, image_random, random_chunk, requires, run, wait_until

MIB = 1 << 20


def connect(uri, export=None):
    handle = nbd.NBD()
    if export is not None:
        handle.set_export_name(export)
    handle.connect_uri(uri)
    return handle


def test_a_disk_from_ready_to_the_last_write(tmp_path):
    disk = image_random(tmp_path / "disk", 2 * MIB)
    with Server(disk) as server:
        assert server.ready.decode().startswith("nbd+unix:///?socket=")
        client = connect(server.ready.decode().split("\n")[0])
        assert client.get_size() == 2 * MIB
        assert client.pread(MIB, MIB) == random_chunk(MIB, MIB)
        client.pwrite(b"x" * 4096, 512)
        client.shutdown()
    assert disk.read_bytes()[512:512 + 4096] == b"x" * 4096


@pytest.mark.threaded
def test_exports(tmp_path):
    disk = image_random(tmp_path / "disk", MIB)
    with Server("--description", "one", disk, "--export", "b\u00fc", "pattern:2M", "--description",
                "two", "--export", "c", "memory:3M", "-r") as server:
        lister = nbd.NBD()
        lister.set_opt_mode(True)
        lister.connect_uri(server.uri())
        found = []
        lister.opt_list(lambda name, description: found.append((name, description)))
        lister.opt_abort()
        assert sorted(found) == [("", "one"), ("b\u00fc", "two"), ("c", "")]
        for name, size in (("", MIB), ("b\u00fc", 2 * MIB), ("c", 3 * MIB)):
            client = connect(server.uri(name))
            assert client.get_size() == size and client.is_read_only()
            client.set_strict_mode(0)
            with pytest.raises(nbd.Error) as refused:
                client.pwrite(b"x" * 512, 0)
            assert refused.value.errno in ("EPERM", "EROFS")
            assert len(client.pread(512, 0)) == 512
            client.shutdown()
        with pytest.raises(nbd.Error):
            connect(server.uri("nobody"))


def test_a_file_that_looks_like_an_image_is_served_raw_only_by_name(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(b"QFI\xfb\0\0\0\x03" + bytes(MIB))
    refused = run("penstock", "serve", "-U", str(tmp_path / "s"), disk, status=1)
    assert str(disk) in refused.err and not os.path.exists(tmp_path / "s")
    with Server("-f", "raw", "-r", disk) as server:
        assert connect(server.uri()).pread(4, 0) == b"QFI\xfb"


def test_one_disk_has_one_writer(tmp_path):
    disk = image_random(tmp_path / "disk", MIB)
    with Server(disk):
        second = run("penstock", "serve", "-U", str(tmp_path / "s"), disk, status=1)
        assert str(disk) in second.err
        with Server("--no-lock", disk) as careless:
            assert connect(careless.uri()).get_size() == MIB


def test_tcp_with_a_port_of_the_kernel(tmp_path):
    disk = image_random(tmp_path / "disk", MIB)
    with Server("--tcp", "127.0.0.1:0", disk, socket=False) as server:
        uri = server.ready.decode().split("\n")[0]
        assert uri.startswith("nbd://127.0.0.1:") and not uri.startswith("nbd://127.0.0.1:0")
        assert connect(uri).pread(MIB, 0) == random_chunk(0, MIB)


@pytest.mark.threaded
def test_unix_and_tcp_at_once():
    with Server("--tcp", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "-r", "pattern:1M") as server:
        uris = server.ready.decode().split()
        assert len(set(uris)) == 3
        assert len({bytes(connect(uri).pread(4096, 4096)) for uri in uris}) == 1


def test_a_clipped_buffer_is_said_once():
    """More than the kernel's limit, without the right to force it: two clients, one warning."""
    with open("/proc/sys/net/core/wmem_max", encoding="ascii") as file:
        limit = int(file.read())
    if limit > 64 * MIB:
        pytest.skip(f"skipped: net.core.wmem_max is {limit}")
    drop = []
    if os.geteuid() == 0:
        requires("setpriv")
        drop = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    client = f'{shlex.quote(PENSTOCK)} info "$uri" >/dev/null 2>&1'
    err = run(*drop, PENSTOCK, "serve", f"--socket-buffer={2 * limit}", "--run",
              f"{client} && {client}", "null:1M").err
    assert err.count(f"sysctl -w net.core.wmem_max={2 * limit}") == 1, err


def test_vsock():
    """A port of the kernel's choice; read through it where the host has a loopback for vsock."""
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as one:
            one.bind((0xFFFFFFFF, 0xFFFFFFFF))
    except OSError as error:
        pytest.skip(f"skipped: no vsock here: {error}")
    with Server("--vsock=4294967295:4294967295", "-r", "pattern:1M", socket=False) as server:
        uri = server.ready.decode().split("\n")[0]
        port = int(re.fullmatch(r"nbd\+vsock://\d+:(\d+)/", uri).group(1))
        assert port not in (0, 0xFFFFFFFF)
        said = run("penstock", "sum", "--connect-timeout=1", f"nbd+vsock://1:{port}/",
                   status=[0, 1])
        if said.status == 0:
            assert said.out.split()[0] == run("penstock", "sum", "pattern:1M").out.split()[0]
        else:
            assert f"nbd+vsock://1:{port}/" in said.err


def test_socket_mode():
    for mode in ("600", "660", "666", "0640"):
        with Server("--socket-mode", mode, "null:1M") as server:
            assert stat.S_IMODE(os.stat(server.socket).st_mode) == int(mode, 8)


@pytest.mark.threaded
def test_max_connections_refuses_the_next_one():
    with Server("--max-connections=2", "null:1M") as server:
        clients = [connect(server.uri()), connect(server.uri())]
        with pytest.raises(nbd.Error):
            connect(server.uri())
        assert len(clients[0].pread(4096, 0)) == 4096
        clients[1].shutdown()

        def free_again():
            with contextlib.suppress(nbd.Error):
                return connect(server.uri()).get_size() == MIB

        wait_until(free_again)


def test_handshake_timeout():
    with Server("--handshake-timeout=0.2", "null:1M") as server:
        connected = connect(server.uri())
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(server.socket)
            wait_until(lambda: select.select([silent], [], [], 1)[0])
            while silent.recv(4096):
                pass
        assert len(connected.pread(512, 0)) == 512  # it is for the handshake only


def test_one_shot_ends_with_its_client():
    server = Server("--one-shot", "null:1M")
    server.start()
    client = connect(server.uri())
    client.pread(512, 0)
    client.shutdown()
    server.wait(0)


@pytest.mark.threaded
def test_clients_come_and_go():
    with Server("--workers=2", "null:1M") as server:
        for _ in range(20):
            connect(server.uri()).shutdown()
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(server.socket)
        assert connect(server.uri()).get_size() == MIB


@pytest.mark.threaded
def test_options_of_transport_and_threads(tmp_path):
    disk = image_random(tmp_path / "disk", MIB)
    for options in (["--socket-buffer=default"], ["--socket-buffer=64K"], ["--workers=1"],
                    ["--cache=none"], ["--cache=writethrough"], ["--memory=64M"],
                    ["--requests=1"]):
        with Server(*options, disk) as server:
            client = connect(server.uri())
            assert client.pread(MIB, 0) == random_chunk(0, MIB)
            client.pwrite(random_chunk(0, MIB), 0)
            client.flush()


def test_a_program_as_endpoint(tmp_path):
    if not shutil.which("nbdkit"):
        pytest.skip("skipped: there is no nbdkit")
    with Server("[", "nbdkit", "memory", "1M", "]") as server:
        assert connect(server.uri()).get_size() == MIB
