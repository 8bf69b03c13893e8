#!/usr/bin/env python3
"""analyse.py BUILD: compiles each file of the product and of the benchmarks by itself, without making code of it, for the warnings and
the thread-safety analysis. BUILD has a compile_commands.json. Prints what the compiler says; exit 1 if it refuses a file.
Most of the time would go to headers that many files share: those that PREFIXES names are compiled once. A file is compiled with
one of these only if the file's own header includes it, so that a file or a header that lacks an include is refused all the same."""

import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANALYSED = ["base", "alloc", "tier", "fs", "daemon", "bench"]
# A file takes the first that it can take.
PREFIXES = ["tier/pool/pool_disk.h", "alloc/memory_arena.h", "tier/catalog/catalog.h", "daemon/cli/mount_tree.h", "bench/rows.h",
            "base/result.h"]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


@functools.cache
def direct_includes(path):
    return [name for name in INCLUDE.findall((ROOT / path).read_text()) if (ROOT / name).is_file()]


def includes(path):
    found, left = set(), [path]
    while left:
        more = set(direct_includes(left.pop())) - found
        found |= more
        left += more
    return found


def prefix_of(entry):
    path = pathlib.Path(entry["file"]).relative_to(ROOT)
    header = path.with_suffix(".h")
    if (ROOT / header).is_file():
        found = includes(str(header))
    else:
        found = includes(str(path))
    return next((prefix for prefix in PREFIXES if prefix in found), None)


def options_of(entry):
    words = shlex.split(entry["command"])
    kept, skip = [], False
    for word in words:  # without the outputs: the object and the list of what it depends on
        if not skip and word not in ("-o", "-MF", "-MT", "-MD", "-c", entry["file"]):
            kept.append(word)
        skip = word in ("-o", "-MF", "-MT")
    return kept + ["-pthread"]  # some have it, and all that use a prefix must agree


def compile_prefix(prefix, entry, output):
    """Of a prefix that does not compile, each file says why."""
    done = subprocess.run(options_of(entry) + ["-x", "c++-header", str(ROOT / prefix), "-o", output], cwd=entry["directory"],
                          capture_output=True)
    return output if done.returncode == 0 else None


def analyse(entry, prefix):
    return subprocess.run(options_of(entry) + (["-include-pch", prefix] if prefix else []) + ["-fsyntax-only", entry["file"]],
                          cwd=entry["directory"], capture_output=True, text=True)


def main():
    entries = [entry for entry in json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text())
               if pathlib.Path(entry["file"]).relative_to(ROOT).parts[0] in ANALYSED]
    users = collections.defaultdict(list)
    for entry in entries:
        users[prefix_of(entry), *(word for word in options_of(entry) if word.startswith("-D"))].append(entry)
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as executor:
        prefixes = {key: executor.submit(compile_prefix, key[0], those[0], f"{directory}/{number}.pch")
                    for number, (key, those) in enumerate(users.items()) if key[0] and len(those) > 3}
        compiled = {key: prefix.result() for key, prefix in prefixes.items()}
        results = list(executor.map(analyse, *zip(*((entry, compiled.get(key)) for key, those in users.items() for entry in those))))
    for result in results:
        print(result.stdout + result.stderr, end="")
    refused = sum(result.returncode != 0 for result in results)
    print(f"{len(entries) - refused} passed, {refused} failed")
    return 1 if refused or not entries else 0


sys.exit(main())
