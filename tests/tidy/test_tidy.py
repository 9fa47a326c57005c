"""What a script can say of the source: form, banned calls, who includes whom, what stands alone."""

import os
import re
import subprocess
import warnings

import pytest

from harness import run
from harness.process import PENSTOCK, ROOT

COLUMNS = 100
FILE_LINES_AIM, FILE_LINES_LIMIT = 600, 1200
FUNCTION_LINES_AIM, FUNCTION_LINES_LIMIT = 60, 100

# What to call instead is in CONTRIBUTING.md.
BANNED_C = re.compile(
    r"(?<![\w.>])(strcpy|strcat|strncpy|strncat|stpcpy|sprintf|vsprintf|gets|atoi|atol|atoll|atof|"
    r"strtol|strtoll|strtoul|strtoull|strtod|sscanf|alloca|system|popen|usleep|sleep|mktemp|tmpnam|"
    r"tempnam|gethostbyname|inet_ntoa|inet_addr|strtok|rand|srand|setjmp|longjmp)\s*\(")
BANNED_PYTHON = re.compile(r"\b(time\.sleep|preexec_fn\s*=|os\.system|shell\s*=\s*True)")


def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, check=True).stdout.decode()
    return [name for name in out.split("\0") if name and os.path.isfile(os.path.join(ROOT, name))]


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def is_binary(name):
    with open(os.path.join(ROOT, name), "rb") as file:
        return b"\0" in file.read(4096) or "/corpus/" in name


def code_only(text):
    """C without comments and literals, line numbers kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(match):
        kept = match.group(0)
        return kept[0] + "\n" * kept.count("\n") + kept[0] if kept[0] in "\"'" else \
            " " + "\n" * kept.count("\n")

    return re.sub(pattern, blank, text, flags=re.S)


def report(problems):
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def c_files(*folders):
    return [name for name in tracked()
            if name.endswith((".c", ".h")) and name.startswith(folders or ("",))]


def python_files():
    return [name for name in tracked() if name.endswith(".py") or name == "scripts/check-all"]


def test_lines():
    problems = []
    for name in tracked():
        if is_binary(name) or not text_of(name):
            continue
        text = text_of(name)
        limited = name.endswith((".c", ".h", ".py", "meson.build"))
        if name.endswith(".json"):
            continue
        if not text.endswith("\n") or text.endswith("\n\n"):
            problems.append(f"{name}: ends with one newline")
        for number, line in enumerate(text.split("\n"), 1):
            if limited and len(line) > COLUMNS:
                problems.append(f"{name}:{number}: {len(line)} columns, {COLUMNS} are allowed")
            if line != line.rstrip():
                problems.append(f"{name}:{number}: spaces at the end")
            if "\t" in line and name.endswith((".c", ".h", ".py", "meson.build")):
                problems.append(f"{name}:{number}: a tab")
    report(problems)


def test_banned_calls():
    problems = []
    for name in c_files("src/", "include/", "tests/"):
        for number, line in enumerate(code_only(text_of(name)).split("\n"), 1):
            for match in BANNED_C.finditer(line):
                problems.append(f"{name}:{number}: {match.group(1)}() is banned")
    for name in python_files():
        if name == "tests/tidy/test_tidy.py" or name.startswith("scripts/"):
            continue
        for number, line in enumerate(text_of(name).split("\n"), 1):
            if BANNED_PYTHON.search(line.split("#")[0]):
                problems.append(f"{name}:{number}: {line.strip()}")
    report(problems)


def test_nothing_is_left_for_later():
    names = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")
    words = re.compile(r"\b(" + "|".join(names) + r")\b")
    report([f"{name}:{number}: {line.strip()}"
            for name in tracked() if not is_binary(name)
            for number, line in enumerate(text_of(name).split("\n"), 1) if words.search(line)])


def rooms():
    match = re.search(r"foreach room : \[(.*?)\]", text_of("src/meson.build"), re.S)
    return re.findall(r"'(\w+)'", match.group(1))


def test_lower_rooms_do_not_include_upper_ones():
    order = rooms()
    assert order[0] == "core" and order[-1] == "cli"
    problems = []
    for name in c_files("src/"):
        room = name.split("/")[1]
        for number, line in enumerate(text_of(name).split("\n"), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            other = match.group(1).split("/")[0]
            if "/" not in match.group(1) or other not in order:
                continue
            if order.index(other) > order.index(room):
                problems.append(f"{name}:{number}: {room} is below {other}")
    report(problems)


def test_each_header_stands_alone(tmp_path):
    build = os.path.dirname(os.path.dirname(os.path.dirname(PENSTOCK)))
    if not os.path.exists(os.path.join(build, "config.h")):
        pytest.skip(f"skipped: there is no build in {build}")
    sources = []
    for name in c_files("src/", "include/"):
        if name.endswith(".h"):
            source = tmp_path / (name.replace("/", "_") + ".c")
            # Twice: it also guards itself.
            source.write_text(f'#include "{ROOT}/{name}"\n#include "{ROOT}/{name}"\n')
            sources.append(source)
    run("gcc", "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
        f"-I{ROOT}/src", f"-I{ROOT}/include", f"-I{build}", *sources)


def functions(name):
    """(name's line, lines) of each function of a C file: a brace alone in the first column."""
    start = None
    for number, line in enumerate(text_of(name).split("\n"), 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            yield start, number - start - 1
            start = None


def test_sizes():
    problems = []
    smells = []
    for name in c_files("src/", "include/", "tests/") + python_files():
        lines = text_of(name).count("\n")
        if lines > FILE_LINES_AIM:
            (problems if lines > FILE_LINES_LIMIT else smells).append(f"{name}: {lines} lines")
        if name.endswith(".c"):
            for number, length in functions(name):
                if length > FUNCTION_LINES_AIM:
                    (problems if length > FUNCTION_LINES_LIMIT else smells).append(
                        f"{name}:{number}: a function of {length} lines")
    if smells:
        warnings.warn("long, think of splitting:\n" + "\n".join(smells))
    report(problems)


def test_files_say_what_they_are():
    report([f"{name}: opens without a comment that says what it is"
            for name in c_files("src/") if not text_of(name).startswith("/*")])


def test_scripts_can_be_run():
    report([f"{name}: has an interpreter but is not executable"
            for name in tracked() if not name.endswith(".py") and not is_binary(name)
            and text_of(name).startswith("#!")
            and not os.access(os.path.join(ROOT, name), os.X_OK)])
