"""penstock bench: small runs, whole answers. What is measured is nobody's business here."""

import csv
import json
import os
import signal
import stat

import pytest
from harness import PENSTOCK, requires, run, start, wait_until


def small(*args, status=0):
    return run("penstock", "bench", *args, status=status, seconds=120)


def test_nbd(tmp_path):
    _, out, _ = small("nbd", "--size", "2M", "--rounds", "1", "--path", tmp_path, "--json",
                      "--csv", tmp_path / "t.csv", "--html", tmp_path / "t.html")
    tables = json.loads(out)["tables"]
    assert len(tables) == 3
    for table in tables:
        assert [row["send_buffer"] for row in table["rows"]] == ["default", "512K", "1M", "2M",
                                                                  "4M"]
        assert all(row["seconds"] > 0 for row in table["rows"])
    assert tables[0]["rows"][3]["published_ratio"] == pytest.approx(2.278, abs=0.001)
    assert tables[0]["rows"][0]["receives_a_mib"] > 0
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 1 + 15
    assert (tmp_path / "t.html").read_text().count("<svg") == 3
    assert sorted(os.listdir(tmp_path)) == ["t.csv", "t.html"]


@pytest.mark.slow
@pytest.mark.parametrize("server", ["qemu-nbd", "nbdkit", "nbd-server"])
def test_nbd_against(tmp_path, server):
    requires(server)
    _, out, _ = small("nbd", "-s", "1M", "-n", "1", "--path", tmp_path, "--against", server)
    assert f"server: {server}" in out
    assert os.listdir(tmp_path) == []


def test_nbd_against_a_command_that_fails(tmp_path):
    _, _, err = small("nbd", "-s", "1M", "-n", "1", "--path", tmp_path, "--against", "exit 1",
                      status=1)
    assert "ended before it listened" in err
    assert os.listdir(tmp_path) == []


def test_io(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    for pattern in ("randread", "read", "randwrite", "write", "randrw"):
        _, out, _ = small("io", "--rw", pattern, "-t", "0.05", "-n", "2", "-d", "1,4", "--write",
                          "--json", disk, "memory:1M")
        rows = json.loads(out)["tables"][0]["rows"]
        assert [row["depth"] for row in rows] == ["1", "4"]
        assert all(row["iops"] > 0 and row["p50_us"] <= row["max_us"] for row in rows)


def test_io_errors(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    _, _, err = small("io", "-t", "5", f"fault:read-error=EIO@512K+4K:{disk}", status=1)
    assert "Input/output error" in err and str(disk) in err
    small("io", tmp_path / "none", status=1)
    small("io", "-b", "2M", disk, status=1)


def test_pipe(tmp_path):
    _, out, _ = small("pipe", "-s", "1M", "-n", "1", "--path", tmp_path / "f", "--json")
    tables = json.loads(out)["tables"]
    assert len(tables) == 3
    assert [row["pipe"] for row in tables[0]["rows"]][2] == "64 KiB"
    assert os.listdir(tmp_path) == []


def test_stopped(tmp_path):
    program = start(PENSTOCK, "bench", "pipe", "-s", "64M", "-n", "99", "--path",
                    tmp_path / "f")
    wait_until(lambda: os.listdir(tmp_path), what="the bench has begun")
    program.kill(signal.SIGTERM)
    assert program.wait() == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("args", [
    ["cpu"], ["nbd", "memory:1M"], ["io"], ["io", "-d", "1,,2", "memory:1M"],
    ["io", "--rw", "randwrite", "memory:1M"], ["pipe", "-n", "0"], []])
def test_wrong_use(args):
    small(*args, status=2)


def test_devices_stay(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("skipped: no right to make devices")
    small("pipe", "-s", "1M", "-n", "1", "--path", device)
    run("penstock", "sum", "--leaves", device, "memory:1M", status=1)
    assert os.listdir(tmp_path) == ["null"]
    assert stat.S_ISCHR(os.stat(device).st_mode)
