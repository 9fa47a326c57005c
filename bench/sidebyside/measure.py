"""Running contenders in turn and keeping what they cost."""

import contextlib
import os
import random
import re
import select
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")


class Place:
    """Private folders and the files that cases share; all gone at the end."""

    def __init__(self, memory, disk, size):
        self.roots = memory, disk
        self.size = size
        self.files = {}

    def __enter__(self):
        self.memory = tempfile.mkdtemp(prefix="psb", dir=self.roots[0])
        self.disk = tempfile.mkdtemp(prefix="psb", dir=self.roots[1])
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.memory, ignore_errors=True)
        shutil.rmtree(self.disk, ignore_errors=True)

    def file(self, name, make, folder=None):
        """The path of a file that make(path) makes when it is first asked for."""
        path = os.path.join(folder or self.memory, name)
        if path not in self.files:
            make(path)
            self.files[path] = True
        return path

    def random(self):
        return self.file("random", lambda path: write_random(path, self.size))

    def drop(self, *names):
        for name in names:
            for folder in (self.memory, self.disk):
                path = os.path.join(folder, name)
                self.files.pop(path, None)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def write_random(path, size):
    piece = bytearray(random.Random(1).randbytes(1 << 20))
    with open(path, "wb") as file:
        for n in range(size >> 20):
            piece[:8] = n.to_bytes(8, "little")
            file.write(piece)


def listens(path):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
            return True
        except OSError:
            return False


def cpu_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextlib.contextmanager
def server(argv, path, env=None):
    """A server that listens at a Unix socket; ended by SIGTERM, by its own pid."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    process = subprocess.Popen(argv, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(3000):
            if process.poll() is not None:
                raise subprocess.CalledProcessError(process.returncode, argv)
            if listens(path):
                break
            select.select([], [], [], 0.005)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def run(argv, env=None, shell=False, capture=False):
    """Runs a program: wall seconds, CPU seconds of it and its children, its output."""
    out = tempfile.TemporaryFile() if capture else subprocess.DEVNULL
    begin = time.monotonic()
    process = subprocess.Popen(argv, env={**os.environ, **(env or {})}, shell=shell, stdout=out,
                               stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    err = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode,
                                            f"{argv}: {err[-300:].decode(errors='replace')}")
    text = ""
    if capture:
        out.seek(0)
        text = out.read().decode(errors="replace")
        out.close()
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}, text


def iops_of(text):
    found = re.search(r'"iops" : ([0-9.]+)', text)
    return float(found.group(1)) if found else 0.0


def run_case(case, place, rounds):
    """Every contender that is installed, in turn."""
    context = case.prepare(place)
    there = [c for c in case.contenders if all(shutil.which(tool, path=os.environ["PATH"] +
                                                            ":/usr/lib/libvirt")
                                               for tool in c.tools)]
    samples = {c.name: [] for c in there}
    for _ in range(case.rounds or rounds):
        for contender in there:
            samples[contender.name].append(contender.run(context))
    case.clean(place)
    rows = []
    for contender in there:
        taken = samples[contender.name]
        row = {"name": contender.name, "limit": contender.limit}
        for key in taken[0]:
            values = sorted(sample[key] for sample in taken)
            row[key] = statistics.median(values)
            row[key + "_spread"] = (values[-1] - values[0]) / row[key] if row[key] else 0
        rows.append(row)
    missing = [c.name for c in case.contenders if c not in there]
    return {"name": case.name, "about": case.about, "rows": rows, "missing": missing,
            "goals": judge(case, {row["name"]: row for row in rows})}


def judge(case, rows):
    """[{text, ratio, goal, met}] for the goals whose contenders ran."""
    judged = []
    for goal in case.goals:
        ours, theirs = rows.get(goal.ours), rows.get(goal.theirs) if goal.theirs else None
        if not ours or (goal.theirs and not theirs):
            continue
        if goal.theirs is None:
            value = ours[goal.key]
            met = value <= goal.at_most
            judged.append({"text": goal.text, "value": value, "goal": goal.at_most, "met": met,
                           "kind": "at most"})
            continue
        ratio = (ours[goal.key] / theirs[goal.key] if goal.more_is_better
                 else theirs[goal.key] / ours[goal.key])
        if goal.at_most is not None:
            value = ours[goal.key] / theirs[goal.key] if theirs[goal.key] else 0
            judged.append({"text": goal.text, "value": value, "goal": goal.at_most,
                           "met": value <= goal.at_most, "kind": "at most"})
        else:
            judged.append({"text": goal.text, "value": ratio, "goal": goal.at_least,
                           "met": ratio >= goal.at_least, "kind": "at least"})
    return judged
