"""Building what is measured, and saying where it was measured."""

import os
import platform
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "build-bench")
PENSTOCK = os.path.join(BUILD, "src/cli/penstock")
MINIMAL = os.path.join(BUILD, "minimal")
UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text):
    unit = UNITS.get(text[-1].upper())
    return int(text[:-1]) << unit if unit else int(text)


def build():
    """penstock and the minimal programs, in release mode."""
    subprocess.run([os.path.join(ROOT, "scripts/install-deps"), "build", "bench"], check=True)
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        subprocess.run(["meson", "setup", BUILD, ROOT, "--buildtype=release"], check=True,
                       stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, "src/cli/penstock"], check=True,
                   stdout=subprocess.DEVNULL)
    os.makedirs(MINIMAL, exist_ok=True)
    source = os.path.join(ROOT, "bench/minimal")
    for name in ("stream", "server", "sha256", "extents"):
        subprocess.run(["cc", "-O2", "-pthread", "-o", os.path.join(MINIMAL, name),
                        os.path.join(source, name + ".c"), "-lcrypto"], check=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", os.path.join(MINIMAL, "sndbuf.so"),
                    os.path.join(source, "sndbuf.c")], check=True)


def describe():
    cpu = "unknown CPU"
    with open("/proc/cpuinfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    version = subprocess.run([PENSTOCK, "--version"], capture_output=True, text=True,
                             check=False).stdout.split("\n")[0]
    return f"{version}; {os.cpu_count()} x {cpu}; {platform.system()} {platform.release()}"
