#!/usr/bin/env python3
"""docs/engines.md names only what there is: settings of a pool, tests, sources. Each replayed engine is in it. Exit 1 if not."""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/engines.md"
# Options of /etc/fstab that are none of the pool: kvcachefsd(8), MOUNT OPTIONS.
OTHER_FSTAB_OPTIONS = {"nofail", "_netdev", "ro", "rw", "x-systemd.requires-mounts-for"}

text = PAGE.read_text()
failures = []


def fail(position, what):
    failures.append(f"docs/engines.md:{text.count(chr(10), 0, position) + 1}: {what}")


def found(pattern, source, what):
    names = set(re.findall(pattern, (ROOT / source).read_text(), re.M))
    if not names:
        sys.exit(f"{source}: no {what} found: this check no longer fits it")
    return names


def check_settings(settings):
    """Of lines of /etc/fstab, of --pool, and of what the prose has in backticks; with their values where the page has them."""
    lists = [*re.finditer(r"^ {4}\w+ +/\S+ +kvcachefs +(?P<options>\S+)  \d  \d$", text, re.M),
             *re.finditer(r"--pool \w+:(?P<options>\S+)", text),
             *re.finditer(r"`(?P<options>[a-z_]+=[^`/ ]*)`", text)]
    if len(lists) < 12:
        sys.exit("docs/engines.md: hardly any settings found: this check no longer fits it")
    for match in lists:
        for option in match["options"].split(","):
            if option.split("=")[0] not in settings | OTHER_FSTAB_OPTIONS:
                fail(match.start(), f"a pool has no setting '{option}'")
        # Otherwise a boot may come to this line before the disk is mounted, and the pool is not served.
        if match[0].startswith(" ") and ",spill=/" in match["options"] and ",x-systemd.requires-mounts-for=/" not in match["options"]:
            fail(match.start(), "the line does not wait for the file system of its spill file")
    table = re.search(r"^## Which settings of a pool\n(.*?)^## ", text, re.M | re.S)
    for row in re.finditer(r"^\| (`[^|]*) \|", table[1], re.M):
        for name in re.findall(r"`(\w+)", row[1]):
            if name not in settings:
                fail(table.start(1) + row.start(), f"a pool has no setting '{name}'")


def check_tests(engines):
    table = re.search(r"^## What was tried\n(.*?)^## ", text, re.M | re.S)
    tests = engines | {path.stem for path in (ROOT / "tests").rglob("*_test.cc")}
    named = set()
    for row in re.finditer(r"^\| [^|]* \|([^|]*)\|", table[1], re.M):
        for name in re.findall(r"`(\w+)`", row[1]):
            named.add(name)
            if name not in tests:
                fail(table.start(1) + row.start(), f"no engine of tests/clients and no test is called '{name}'")
    for name in sorted(engines - named):
        fail(table.start(), f"tests/clients replays '{name}', of which this table says nothing")


def check_sources():
    listed = set(re.findall(r"^\| ([a-z]\d?) \|", text[text.index("## What was read"):], re.M))
    for match in re.finditer(r"\[([a-z]\d?)\]", text):
        if match[1] not in listed:
            fail(match.start(), f"source [{match[1]}] is not in the list")
    for name in sorted(listed - {match[1] for match in re.finditer(r"\[([a-z]\d?)\]", text)}):
        fail(len(text), f"source [{name}] is not referred to")


check_settings(found(r'^    \{"(\w+)", set', "tier/pool_options.cc", "settings"))
check_tests(found(r'^      \{"(\w+)", \d', "tests/clients/engines.cc", "engines"))
check_sources()
print("\n".join(failures))
sys.exit(1 if failures else 0)
