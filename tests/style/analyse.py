#!/usr/bin/env python3
"""analyse.py BUILD: compiles each file of the product and of the benchmarks by itself, without making code of it, for the warnings and
the thread-safety analysis. BUILD has a compile_commands.json. Prints what the compiler says; exit 1 if it refuses a file."""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANALYSED = ["base", "alloc", "tier", "fs", "daemon", "bench"]


def command_of(entry):
    words = shlex.split(entry["command"])
    kept, skip = [], False
    for word in words:  # without the outputs: the object and the list of what it depends on
        if not skip and word not in ("-o", "-MF", "-MT", "-MD"):
            kept.append(word)
        skip = word in ("-o", "-MF", "-MT")
    return kept + ["-fsyntax-only"]


def analyse(entry):
    return subprocess.run(command_of(entry), cwd=entry["directory"], capture_output=True, text=True)


def main():
    entries = [entry for entry in json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text())
               if pathlib.Path(entry["file"]).relative_to(ROOT).parts[0] in ANALYSED]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as executor:
        results = list(executor.map(analyse, entries))
    for result in results:
        print(result.stdout + result.stderr, end="")
    refused = sum(result.returncode != 0 for result in results)
    print(f"{len(entries) - refused} passed, {refused} failed")
    return 1 if refused or not entries else 0


sys.exit(main())
