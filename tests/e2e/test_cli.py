"""The command line itself: wrong use, help, completions, man pages."""

import json
import os
import re
import subprocess

import pytest

from harness import PENSTOCK, requires, run
from harness.process import ROOT

COMMANDS = subprocess.run([PENSTOCK, "__doc", "commands"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, check=True).stdout.decode().split()


def names(command):
    return run("penstock", "__doc", "names", command).out.split()


WRONG = [
    ([], "a command is missing"),
    (["frobnicate"], 'unknown command "frobnicate"'),
    (["--frobnicate"], 'unknown option "--frobnicate"'),
    (["help", "frobnicate"], 'unknown command "frobnicate"'),
    (["\033[31mred"], 'unknown command "\\x1b[31mred"'),
    (["serve"], "ENDPOINT is missing"),
    (["serve", "-U", "s"], "ENDPOINT is missing"),
    (["serve", "--frobnicate", "null:1M"], "unknown option --frobnicate"),
    (["serve", "--read-onyl", "null:1M"], "did you mean --read-only?"),
    (["serve", "-Z", "null:1M"], "unknown option -Z"),
    (["serve", "-U"], "-U: needs an argument (PATH)"),
    (["serve", "--unix"], "--unix: needs an argument (PATH)"),
    (["serve", "--read-only=yes", "null:1M"], "--read-only: takes no argument"),
    (["serve", "--memory=lots", "null:1M"], '--memory: "lots" is not a size'),
    (["serve", "--memory=1K", "null:1M"], "--memory: 1K is not within 64 MiB to 1 TiB"),
    (["serve", "--workers=0", "null:1M"], "--workers: 0 is not within 1 to 256"),
    (["serve", "--workers=-1", "null:1M"], '--workers: "-1" is not a whole number'),
    (["serve", "--handshake-timeout=x", "null:1M"], '"x" is not a number of seconds'),
    (["serve", "--cache=sometimes", "null:1M"], '--cache: "sometimes" is not one of writeback'),
    (["serve", "-f", "qed", "null:1M"], '-f: "qed" is not one of'),
    (["serve", "--socket-mode=888", "-U", "s", "null:1M"], '--socket-mode: "888" is not a mode'),
    (["serve", "--socket-mode=7777", "-U", "s", "null:1M"], "no more bits than 777"),
    (["serve", "--socket-mode=600", "--tcp=0", "null:1M"], "--socket-mode is for --unix"),
    (["serve", "-U", "s", "--export", "a"], "ENDPOINT is missing"),
    (["serve", "-U", "s", "--export", "a", "--export", "b", "null:1M"],
     "--export: the export before it has no endpoint"),
    (["serve", "-U", "s", "null:1M", "null:1M"], "more endpoints than exports"),
    (["serve", "-U", "s", "[", "prog", "null:1M"], "]"),
    (["serve", "-U", "x" * 200, "null:1M"], "--unix: the path of a Unix socket"),
    (["serve", "--tcp", "host:port", "null:1M"], "--tcp: "),
    (["serve", "--tcp", "1:2:3:4", "null:1M"], "--tcp: "),
    (["serve", "--one-shot", "--persistent", "-U", "s", "null:1M"], "exclude each other"),
    (["serve", "--stdio", "-U", "s", "null:1M"], "--stdio excludes"),
    (["serve", "--stdio", "--run", "true", "null:1M"], "--stdio excludes"),
    (["serve", "--ready-fd=700", "-U", "s", "null:1M"], "--ready-fd 700 can't be written to"),
    (["serve", "null:1M"], "say where to listen"),
    (["info"], "ENDPOINT is missing"),
    (["info", "null:1M", "null:1M"], '"null:1M" is too much'),
    (["__doc", "nothing"], "no such text"),
]


def test_wrong_use_exits_2_with_a_line_that_says_why(short_tmp):
    for args, text in WRONG:
        result = run("penstock", *args, status=2, cwd=short_tmp)
        assert text in result.err, args
        assert result.err.startswith("penstock") and result.err.count("\n") == 1, result.err
        assert result.out == "", args
        assert os.listdir(short_tmp) == [], args


def test_version_and_help():
    version = run("penstock", "--version")
    assert re.match(r"penstock \d+\.\d+\.\d+\n", version.out) and "io_uring" in version.out
    assert run("penstock", "-V").out == version.out
    overview = run("penstock", "--help")
    assert overview.err == "" and overview.out == run("penstock", "help").out
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", overview.out, re.M), command
        text = run("penstock", command, "--help")
        assert text.err == "" and text.out == run("penstock", "help", command).out
        # Asked for help, it does not complain of the rest.
        assert run("penstock", command, "--frobnicate", "-h", status=[0, 2])
        options = text.out.split("\nOptions:\n")[1].split("\nExamples:")[0]
        assert max(len(line) for line in options.splitlines()) <= 80


def test_help_to_a_full_disk_fails():
    with open("/dev/full", "wb") as full:
        result = run("penstock", "--help", status=1, stdout=full)
        assert "standard output" in result.err
        run("penstock", "info", "null:1M", status=1, stdout=full)


def test_closed_standard_descriptors(tmp_path):
    """What nobody gave is not an empty disk, and an answer that nobody can get is a failure."""
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * 70000)
    out = tmp_path / "out"
    for command, ends in [
        (f"copy - {out} <&-", 1), (f"save {out} <&-", 1), ("sum - <&-", 1),
        (f"copy {disk} - >&-", 1), (f"restore {disk} >&-", 1), (f"sum {disk} >&-", 1),
        (f"info {disk} >&-", 1), ("--version >&-", 1),
        # Who needs none of them has no use for them.
        (f"copy {disk} {out} <&- >&- 2>&-", 0), (f"compare {disk} {out} <&- 2>&-", 0),
    ]:
        run("sh", "-c", f'"$0" {command}', PENSTOCK, status=ends)
        assert disk.read_bytes() == b"x" * 70000, command
    assert sorted(os.listdir(tmp_path)) == ["disk", "out"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_man_page_and_completions_know_the_same_options(command):
    wanted = set(names(command))
    assert "--help" in wanted

    text = run("penstock", command, "--help").out.split("\nOptions:\n")[1].split("\nExamples:")[0]
    shown = set()
    for line in text.splitlines():
        match = re.match(r"  (?:(-.), |    )(--[a-z0-9-]+)", line)
        if match:
            shown.update(name for name in match.groups() if name)
    assert shown == wanted

    man = run("penstock", "__doc", "man", command).out.split("# OPTIONS\n")[1].split("\n# ")[0]
    listed = set()
    for line in man.splitlines():
        if line.startswith("*-"):
            listed.update(re.findall(r"\*(--?[a-zA-Z0-9-]+)\*", line))
    assert listed == wanted

    fish = set()
    for line in run("penstock", "__doc", "completion", "fish").out.splitlines():
        if f"__fish_seen_subcommand_from {command}'" in line:
            fish.update("--" + name for name in re.findall(r" -l ([a-z0-9-]+)", line))
            fish.update("-" + name for name in re.findall(r" -s (\S)", line))
    assert fish == wanted

    zsh = run("penstock", "__doc", "completion", "zsh").out
    part = zsh.split(f"\n    {command})\n")[1].split(";;")[0]
    assert set(re.findall(r"'\*?(--?[a-zA-Z0-9-]+?)[=+\[-]*\[", part)) == wanted


def complete(*words):
    """What bash would offer for the last word."""
    completion = run("penstock", "__doc", "completion", "bash").out
    script = completion + '\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n_penstock\n' \
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    return run("bash", "-c", script, "bash", "penstock", *words).out.split()


def test_bash_completion_completes(short_tmp):
    assert set(complete("")) == {"--help", "--version", *COMMANDS}
    assert complete("ser") == ["serve"]
    assert complete("serve", "--read") == ["--read-only", "--ready-fd"] or \
        set(complete("serve", "--read")) == {"--read-only", "--ready-fd"}
    assert set(complete("serve", "--cache", "write")) == {"writeback", "writethrough"}
    assert complete("serve", "--workers", "a") == ["auto"]
    os.mkdir(os.path.join(short_tmp, "folder"))
    assert complete("serve", "-U", short_tmp + "/fo") == [short_tmp + "/folder"]
    for command in COMMANDS:
        assert set(complete(command, "-")) == set(names(command))


def test_every_command_has_a_man_page():
    requires("scdoc")
    with open(os.path.join(ROOT, "docs/man/meson.build"), encoding="utf-8") as file:
        built = set(re.findall(r"^  '([a-z-]+)',$", file.read(), re.M))
    assert built == set(COMMANDS)
    for command in ["penstock", *COMMANDS]:
        name = "penstock" if command == "penstock" else "penstock-" + command
        prose = os.path.join(ROOT, "docs/man", name + ".scd.in")
        source = run("penstock", "__doc", "man", command, prose).out
        page = run("scdoc", stdin=source.encode())
        assert page.err == "" and f'.TH "{name}" "1"' in page.out


def test_json_is_all_there_is_on_standard_output():
    result = run("penstock", "info", "--json", "-v", "null:1M")
    assert json.loads(result.out)["size"] == 1 << 20
