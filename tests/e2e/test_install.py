"""What an installation has: programs, pages, completions, and libpenstock for other programs."""

import os
import re

import pytest

from harness import requires, run
from harness.process import PENSTOCK, ROOT

BUILD = os.path.dirname(os.path.dirname(os.path.dirname(PENSTOCK)))
PROGRAM = r"""
#include <penstock.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct penstock_fdwrap *w;
    char text[256];
    int fd = open(argv[argc - 1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (penstock_fdwrap_open(&fd, argv[argc - 1], 0, &w) != 0 || write(fd, "hello", 5) != 5) {
        return 1;
    }
    close(fd);
    int r = penstock_fdwrap_close(w, text, sizeof(text));
    penstock_fdwrap_free(w);
    puts(r == 0 ? penstock_version() : text);
    return r != 0;
}
"""


def declared():
    with open(os.path.join(ROOT, "include/penstock.h"), encoding="utf-8") as file:
        return set(re.findall(r"\b(penstock_\w+)\(", re.sub(r"/\*.*?\*/", "", file.read(),
                                                            flags=re.S)))


@pytest.mark.slow
def test_install(tmp_path):
    for program in ("meson", "pkg-config", "gcc", "nm"):
        requires(program)
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        pytest.skip(f"skipped: {BUILD} is not a build folder")
    run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", tmp_path / "d")
    found = {}
    for folder, _, names in os.walk(tmp_path / "d"):
        found.update((name, os.path.join(folder, name)) for name in names)
    for name in ("penstock", "penstock.h", "penstock.pc", "libpenstock.so", "_penstock",
                 "penstock.fish"):
        assert name in found, sorted(found)
    assert run(found["penstock"], "--version").out.startswith("penstock ")

    lines = run("nm", "-D", "--defined-only", found["libpenstock.so"]).out.splitlines()
    exported = {line.split()[2].split("@")[0] for line in lines if line.split()[1] != "A"}
    assert exported == declared()

    pkg = {"PKG_CONFIG_LIBDIR": os.path.dirname(found["penstock.pc"]),
           "PKG_CONFIG_SYSROOT_DIR": str(tmp_path / "d")}
    flags = run("pkg-config", "--cflags", "--libs", "penstock", env=pkg).out.split()
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    run("gcc", "-Wall", "-Werror", source, "-o", tmp_path / "program", *flags)
    out = run(tmp_path / "program", tmp_path / "file", env={
        "LD_LIBRARY_PATH": os.path.dirname(found["libpenstock.so"])}).out
    assert out == run(found["penstock"], "--version").out.splitlines()[0].split()[1] + "\n"
    assert (tmp_path / "file").read_bytes() == b"hello"


def test_probes():
    """The USDT probes of src/core/probe.h are in the program."""
    requires("readelf")
    if not re.search(r"^ *probes +yes", run("penstock", "--version").out, re.M):
        pytest.skip("skipped: built without probes")
    notes = run("readelf", "-n", "-W", PENSTOCK).out
    found = set(re.findall(r"Provider: penstock\s+Name: (\w+)", notes))
    assert found >= {"request__start", "request__end", "connection__open", "connection__close",
                     "buffer__clipped"}
