"""penstock map: rows, totals, and what qemu-img says of the same file."""

import json
import os

from harness import QemuNbd, image_sparse, run


def map_json(name, *args):
    return json.loads(run("penstock", "map", "--json", *args, name).out)


def test_rows_cover_the_disk(tmp_path):
    disk = image_sparse(tmp_path / "disk", (5 << 20) + 777)
    answer = map_json(disk)
    at = 0
    last = None
    for row in answer["extents"]:
        assert row["offset"] == at and row["length"] > 0 and row["type"] != last
        at += row["length"]
        last = row["type"]
    assert at == answer["size"] == os.path.getsize(disk)
    lines = run("penstock", "map", disk).out.splitlines()
    assert [line.split() for line in lines] == \
        [[str(row["offset"]), str(row["length"]), row["type"]] for row in answer["extents"]]
    totals = map_json(disk, "--totals")
    assert totals["extent_count"] == len(lines)
    assert sum(totals["totals"].values()) == totals["size"]


def test_same_data_as_qemu_img(tmp_path):
    disk = image_sparse(tmp_path / "disk", 8 << 20)
    theirs = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", disk).out)
    ours = map_json(disk)["extents"]
    assert [(r["start"], r["length"]) for r in theirs if r["data"]] == \
        [(r["offset"], r["length"]) for r in ours if not r["zero"]]
    with QemuNbd("-f", "raw", disk) as peer:
        assert map_json(peer.uri())["extents"] == ours


def test_errors(tmp_path):
    disk = image_sparse(tmp_path / "disk", 8 << 20)
    bad = f"fault:extents-error=EIO:{disk}"
    result = run("penstock", "map", "--json", bad, status=1)
    assert json.loads(result.out)["extents"] == [] and "fault" in result.err
    assert run("penstock", "map", tmp_path / "none", status=1).out == ""
    with open("/dev/full", "wb") as full:
        assert "standard output" in run("penstock", "map", disk, status=1, stdout=full).err


def test_huge_and_empty():
    assert map_json("null:9223372036854775807")["extents"][0]["length"] == (1 << 63) - 1
    assert map_json("null:0")["extents"] == []
    assert run("penstock", "map", "--totals", "null:0").out == ""
