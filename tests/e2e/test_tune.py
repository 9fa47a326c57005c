"""penstock tune: it looks, says, and changes nothing."""

import json
import os

from harness import run


def test_text_and_exit_code():
    status, out, _ = run("penstock", "tune", status=[0, 3])
    assert "net.core.wmem_max" in out and "io_uring" in out
    assert ("clipped" in out) == (status == 3)


def test_json_and_drop_in(tmp_path):
    status, out, _ = run("penstock", "tune", "--json", "--write", tmp_path / "60.conf",
                         status=[0, 3])
    items = {item["name"]: item for item in json.loads(out)["items"]}
    clipped = [item for item in items.values() if item["state"] == "clipped"]
    assert bool(clipped) == (status == 3)
    with open("/proc/sys/net/core/wmem_max", encoding="ascii") as file:
        assert items["net.core.wmem_max"]["value"].startswith(file.read().strip())
    text = (tmp_path / "60.conf").read_text()
    for item in clipped:
        assert item["setting"] and item["effect"]
        assert not item["setting"].startswith("sysctl") or item["name"] in text


def test_measured():
    _, out, _ = run("penstock", "tune", "--json", "--measure", status=[0, 3])
    measured = json.loads(out)["measured"]
    assert {row["what"] for row in measured} == {"unix socket", "pipe"}
    assert all(row["gib_s"] > 0 for row in measured)


def test_a_full_disk():
    if os.path.exists("/dev/full"):
        _, _, err = run("penstock", "tune", "--write", "/dev/full", status=1)
        assert "No space left on device" in err
