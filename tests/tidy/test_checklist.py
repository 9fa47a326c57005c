"""Each item of docs/nbd-checklist.md has a test with its number in its name."""

import re

from test_tidy import c_files, python_files, report, text_of

# Items that are about TLS, which is not there yet. 70 and 73 say what a server without it does.
TLS = {58, *range(70, 84)} - {70, 73}


def items():
    found = {}
    for line in text_of("docs/nbd-checklist.md").split("\n"):
        match = re.match(r"(\d+)\.\s+(.*)", line)
        if match:
            found[int(match.group(1))] = match.group(2)
    return found


def named():
    """The numbers in names such as test_s099_s100_out_of_range and c179_c180_good_uris."""
    names = []
    for name in python_files():
        names += re.findall(r"^def (test_\w+)", text_of(name), re.M)
    for name in c_files("tests/unit/"):
        names += re.findall(r"\bRUN\((\w+)\)", text_of(name))
    return {int(number) for name in names for number in re.findall(r"(?:^|_)[sbc](\d+)(?=_)", name)}


def test_every_item_has_a_test():
    every = items()
    assert sorted(every) == list(range(1, len(every) + 1))
    report([f"no test has the number {number}: {every[number]}"
            for number in sorted(set(every) - TLS - named())])
    report([f"there is no item {number}" for number in sorted(named() - set(every))])
