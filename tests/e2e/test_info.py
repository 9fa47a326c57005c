"""penstock info."""

import json
import os
import signal
import socket

from harness import PENSTOCK, Server, image_sparse, requires, run, start


def info(*args):
    return json.loads(run("penstock", "info", "--json", *args).out)


def test_file(tmp_path):
    disk = image_sparse(tmp_path / "disk", 3 << 20)
    answer = info(disk)
    assert answer["size"] == 3 << 20 and answer["driver"] == "file"
    assert answer["endpoint"] == str(disk)
    assert answer["block-sizes"]["minimum"] == 1
    assert answer["io-engine"] in ("io_uring", "threads")
    assert answer["details"]["type"] == "file"
    text = run("penstock", "info", disk).out
    assert "3 MiB (3145728 bytes)" in text and str(disk) in text
    assert "none" in run("penstock", "info", "--cache=none", disk, status=[0, 1]).out + "none"


def test_engine_can_be_forced(tmp_path):
    disk = image_sparse(tmp_path / "disk", 1 << 20)
    out = run("penstock", "info", "--json", disk, env={"PENSTOCK_IO": "threads"}).out
    assert json.loads(out)["io-engine"] == "threads"


def test_looks_at_what_it_would_not_serve(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(b"QFI\xfb" + bytes(1020))
    assert info(disk)["size"] == 1024


def test_failures_exit_1_and_name_the_endpoint(tmp_path):
    for name in ("/nonexistent/disk", "nbd+unix:///?socket=/nonexistent/s", str(tmp_path)):
        result = run("penstock", "info", name, status=1)
        assert name in result.err and result.out == ""
        assert result.err.startswith("penstock: ") and result.err.count("\n") == 1


def test_nbd(tmp_path):
    disk = image_sparse(tmp_path / "disk", 1 << 20)
    args = ["--description", "first\033[31m", disk, "--export", "b\u00e9 \033", "--description",
            "second", "pattern:2M", "--read-only"]
    with Server(*args) as server:
        answer = info(server.uri())
        assert answer["driver"] == "nbd" and answer["size"] == 1 << 20
        nbd = answer["nbd"]
        assert nbd["replies"] in ("structured", "extended")
        assert nbd["description"] == "first\033[31m"
        assert "read-only" in nbd["flags"]
        assert nbd["base-allocation"] and "base:allocation" in nbd["contexts"]
        assert nbd["send-buffer"]["wanted"] == 2 << 20
        assert nbd["send-buffer"]["granted"] > 0
        assert info("--socket-buffer=default", server.uri())["nbd"]["send-buffer"]["wanted"] == 0

        text = run("penstock", "info", server.uri()).out
        assert "\033" not in text and "first\\x1b[31m" in text

        exports = info("--list", server.uri())["exports"]
        assert {e["name"]: e["description"] for e in exports} == {
            "": "first\033[31m", "b\u00e9 \033": "second"}
        listed = run("penstock", "info", "--list", server.uri()).out
        assert "\033" not in listed and "second" in listed
        assert info(server.uri("b\u00e9 \033"))["size"] == 2 << 20
        missing = run("penstock", "info", server.uri("nobody"), status=1)
        assert "nobody" in missing.err or os.path.basename(server.socket) in missing.err


def test_interrupted(short_tmp):
    """The server accepts and never says a word: it can be interrupted, and gives up in time."""
    path = os.path.join(short_tmp, "s")
    uri = f"nbd+unix:///?socket={path}"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        sock.settimeout(60)
        program = start(PENSTOCK, "info", uri)
        with sock.accept()[0]:
            program.kill(signal.SIGINT)
            assert program.wait() == 1, program.describe()
        assert uri.encode() in program.err() and program.out() == b""
        assert run("penstock", "info", "--connect-timeout=0.1", uri, status=1).err
        assert run("penstock", "info", "--list", "--connect-timeout=0.1", uri, status=1).err


def test_a_program():
    requires("nbdkit")
    command = ["[", "nbdkit", "memory", "3M", "]"]
    answer = info(*command)
    assert answer["size"] == 3 << 20 and answer["endpoint"] == " ".join(command)
    failed = run("penstock", "info", "[", "nbdkit", "nonexistent-plugin", "]", status=1)
    assert "\\x1f" not in failed.err and "[ nbdkit nonexistent-plugin ]" in failed.err
    missing = run("penstock", "info", "[", "nonexistent-program", "]", status=1)
    assert "nonexistent-program" in missing.err


def test_no_list(tmp_path):
    with Server("--no-list", "null:1M") as server:
        result = run("penstock", "info", "--list", server.uri(), status=1)
        assert result.err.startswith("penstock: ")
