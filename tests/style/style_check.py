#!/usr/bin/env python3
"""The rules of CONTRIBUTING.md that a machine can check. Prints FILE:LINE: what is wrong; exit 1 if anything is."""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
LAYERS = ["base", "alloc", "tier", "fs", "daemon"]  # each may include itself and those before it
EXEMPT = ["tests", "bench"]
LINES_SAID, LINES_MAX, FUNCTION_LINES_MAX = 400, 450, 70
ERRNO_READERS = re.compile(r"base/sys[a-z_]*\.(cc|h)$")
THREAD_STARTERS = {"daemon/workers.cc", "daemon/workers.h"}

failures = []


def fail(path, line, what):
    failures.append(f"{path.relative_to(ROOT)}:{line}: {what}")


def without_comments_and_strings(text):
    """The same text, line for line, with the inside of comments and literals blanked."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def check_includes(path, layer, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"](\w+)/', line)
        if not match or match.group(1) not in LAYERS + EXEMPT or layer in EXEMPT:
            continue
        if match.group(1) in EXEMPT or LAYERS.index(match.group(1)) > LAYERS.index(layer):
            fail(path, number, f"{layer} may not include {match.group(1)}")


def check_words(path, layer, code):
    name = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(code.splitlines(), 1):
        if layer not in EXEMPT and not ERRNO_READERS.search(name) and re.search(r"\berrno\b(?!\.)", line) \
                and not line.lstrip().startswith("#"):
            fail(path, number, "errno is read in base/sys only")
        starts_thread = re.search(r"\bstd::thread\b(?!::)|\bstd::jthread\b(?!::)|\bpthread_create\b|\bstd::async\b", line)
        if layer not in EXEMPT and name not in THREAD_STARTERS and starts_thread:
            fail(path, number, "threads start in daemon/workers.cc only")


def check_functions(path, code):
    """A body is a brace block opened after `)` outside any other body; namespaces and types are not bodies."""
    stack, body_start, head, line = [], None, "", 1
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            scope = re.search(r"\b(namespace|class|struct|union|enum|extern)\b", head) and "(" not in head
            stack.append(body_start is None and not scope and ")" in head)
            if stack[-1]:
                body_start = line
            head = ""
        elif char == "}" and stack:
            if stack.pop():
                if line - body_start + 1 > FUNCTION_LINES_MAX:
                    fail(path, body_start, f"function of {line - body_start + 1} lines, at most {FUNCTION_LINES_MAX}")
                body_start = None
            head = ""
        elif char == ";" and body_start is None:
            head = ""
        else:
            head += char


def check_text(path, text):
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            fail(path, number, "white space at the end")
        if re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", line):
            fail(path, number, "unfinished work is not marked in the text")
    if text and not text.endswith("\n"):
        fail(path, len(lines), "no newline at the end")
    if path.suffix in (".cc", ".h"):
        if len(lines) > LINES_MAX:
            fail(path, len(lines), f"{len(lines)} lines, at most {LINES_MAX}")
        elif len(lines) > LINES_SAID:
            print(f"note: {path.relative_to(ROOT)}: {len(lines)} lines")


def check_header(path, text):
    if not re.match(r"(#pragma once\n+)?(//|/\*)", text):
        fail(path, 1, "a header opens with a comment: what it is, which threads, what on failure")


def check_targets():
    """Every test is built: the ones that CMake finds are those in the folders it globs, the others are named."""
    lists = (ROOT / "tests/CMakeLists.txt").read_text()
    patterns = re.findall(r"[\w./*]+_test\.cc", lists)
    for path in sorted((ROOT / "tests").rglob("*_test.cc")):
        name = path.relative_to(ROOT / "tests")
        if not any(name.match(pattern) and len(name.parts) == pattern.count("/") + 1 for pattern in patterns):
            fail(path, 1, "no target in tests/CMakeLists.txt builds this test")


def main():
    for layer in LAYERS + EXEMPT + ["packaging"]:
        for path in sorted((ROOT / layer).rglob("*")):
            if not path.is_file() or path.suffix not in (".cc", ".h", ".sh", ".py", ".txt", ".md"):
                continue
            text = path.read_text()
            check_text(path, text)
            if path.suffix not in (".cc", ".h"):
                continue
            code = without_comments_and_strings(text)
            check_includes(path, layer, text)
            check_words(path, layer, code)
            if path.suffix == ".h":
                check_header(path, text)
            elif layer != "tests":
                check_functions(path, code)
    check_targets()
    print("\n".join(failures + [f"{len(failures)} failures"]))
    return 1 if failures else 0


sys.exit(main())
