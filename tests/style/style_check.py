#!/usr/bin/env python3
"""The rules of CONTRIBUTING.md that a machine can check. Prints FILE:LINE: what is wrong; exit 1 if anything is."""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
LAYERS = ["base", "alloc", "tier", "fs", "daemon"]  # each may include itself and those before it
# The rooms of tier/, likewise; "" is what lies in the folder itself, which all but the policies may need.
ROOMS = ["policies", "", "survivors", "catalog", "entries", "index", "disk", "pool", "recovery"]
EXEMPT = ["tests", "bench"]
LINES_MAX, FUNCTION_LINES_MAX, PUBLIC_FUNCTIONS_MAX = 400, 70, 25
ERRNO_READERS = re.compile(r"base/sys[a-z_]*\.(cc|h)$")
THREAD_STARTERS = {"daemon/workers.cc", "daemon/workers.h"}
# Where a path of several components is resolved otherwise than by sys::open_beneath, and whose it is. Those of a pool
# are its users', who rename and exchange what is on them at any time. The calls of base/sys.h with a directory refuse
# more than one component.
PATHS_OF_OTHERS = {
    "alloc/memory_arena.cc": "the mount point, in the runtime directory: root's",
    "alloc/numa_topology.cc": "/proc",
    "alloc/placement.cc": "/proc",
    "daemon/cli/check_command.cc": "the caller's, with the caller's rights",
    "daemon/cli/daemon_process.cc": "/proc, and what root's daemon names",
    "daemon/cli/cli.cc": "the caller's, with the caller's rights",
    "daemon/cli/find_commands.cc": "a pool in the mount",
    "daemon/cli/metrics_command.cc": "the caller's, with the caller's rights",
    "daemon/cli/report_command.cc": "the caller's, with the caller's rights",
    "daemon/cli/mount_tree.cc": "the mount's root, pools in it, and their control files",
    "daemon/announcement.h": "/dev/null",
    "daemon/kept_settings.cc": "the state directory: root's",
    "daemon/log_file.cc": "the runtime directory: root's",
    "daemon/reconnection.cc": "the mount point, root's",
    "daemon/succession.cc": "/proc",
    "daemon/system_check/disk_place.cc": "the administrator's",
    "daemon/system_check/mount_trials.cc": "a tmpfs of its own",
    "daemon/mount_helper/mount_helper.cc": "what fstab or root names",
    "daemon/running_daemon.cc": "/proc",
    "daemon/runtime_dir.cc": "the runtime directory: root's",
    "daemon/second_start.cc": "the runtime directory: root's",
    "fs/caller.cc": "/proc",
    "fs/mounts.cc": "/dev/fuse, and a mount point of ours",
    "tier/catalog/catalog_store.cc": "the administrator's",
    "tier/disk/foreign_content.cc": "the administrator's",
    "tier/pool/open_disk_tier.cc": "the administrator's",
    "tier/disk/spill_target.cc": "the administrator's",
    "tier/disk/uring_block_io.cc": "the administrator's",
    "docs/examples/connector.cc": "a client's",
}
PATH_RESOLUTIONS = re.compile(
    r"\bAT_FDCWD\b|(?<![\w)])::(open|stat|lstat|unlink|rename|mkdir|rmdir|chmod|chown|access|readlink)\(|"
    r"\b(openat2?|fstatat|unlinkat|renameat2?|mkdirat|linkat|symlinkat|readlinkat|fchmodat|fchownat|"
    r"name_to_handle_at)\(|\b(realpath|fopen|nftw|fts_open)\(")
# Where the path that the kernel tells of a descriptor is read: to prove it, or to show it and no more.
READERS_OF_PATHS = {"alloc/memory_arena.cc", "alloc/memory_arena.h", "alloc/tree_name.cc", "tier/index/entry_index.cc",
                    "tier/pool/insight.cc"}

# A lock of the standard library, also over a Mutex, is none for the analysis.
BARE_LOCKS = re.compile(r"\bstd::(\w*mutex|lock_guard|(unique|shared|scoped)_lock|condition_variable(_any)?)\b|"
                        r"\bpthread_(mutex|rwlock|cond|spin)_\w+")

# What changes a pool's names and attributes: tier/pool does so for fs/, and tells the entries and the catalog of it.
CHANGES_OF_A_TREE = re.compile(r"\bsys::(unlink_at|rename_at|link_at|symlink_at|make_\w+_at|change_mode|change_owner|"
                               r"set_times|set_xattr|remove_xattr)\(|\bO_CREAT\b")

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


def check_rooms(path, layer, text):
    if layer != "tier":
        return
    room = path.parent.relative_to(ROOT / layer).as_posix().strip(".")
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include "tier/(?:(\w+)/)?\w+\.h"', line)
        if match and ROOMS.index(match.group(1) or "") > ROOMS.index(room):
            fail(path, number, f"tier/{room} may not include tier/{match.group(1) or ''}")


PATH = re.compile(r"(?<![\w/.$}-])(?:" + "|".join(LAYERS + EXEMPT + ["docs", "packaging"]) + r")/[a-z][\w/]*(?:\.\w+)?")


def check_named_paths(path, text):
    """What a comment or a page names is there: with its ending, or as a header, a folder or the start of several names."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line if path.suffix == ".md" else (re.search(r"//.*|^\s*#(?!\s*include).*", line) or [""])[0]
        for name in PATH.findall(words):
            of_kernel = name.endswith(".c")
            if not of_kernel and not any(ROOT.glob(name.rstrip("/") + "*")):
                fail(path, number, f"{name} is not there")


WALKED = re.compile(r"((?:`[\w:]+`(?:, )?)+) \(([\w/]+)\)")


def check_walks(text):
    """A walk in ARCHITECTURE.md passes functions that are in the files it names."""
    walks = text.partition("\n## Walks\n")[2].partition("\n## ")[0]
    for functions, name in WALKED.findall(walks):
        code = (ROOT / f"{name}.cc").read_text() if (ROOT / f"{name}.cc").exists() else ""
        for function in re.findall(r"`([\w:]+)`", functions):
            if not re.search(r"(?<![\w:>.])" + function + r"\([^;]*\{$", code, re.M):
                fail(ROOT / "ARCHITECTURE.md", 1, f"{name}.cc has no {function}")
    for walk in re.split(r"\n- |;", walks)[1:]:
        files = [name for _, name in WALKED.findall(walk)]
        if len(files) > 8 or len(set(files)) < len(files) or walk.startswith("**") and not files:
            fail(ROOT / "ARCHITECTURE.md", 1, f"a walk passes at most 8 files and returns to none: {', '.join(files)}")


FACT = re.compile(r'docs/facts\.md[,:]?\s+"([^"]+)"')


MEMBER = re.compile(r"(?<![\w:])([A-Z]\w+)::([a-z]\w*)\(\)")


def check_named_functions(codes):
    """A function that a comment names as `Class::function()` is in a file that has the class."""
    words_by_class = collections.defaultdict(set)
    for code in codes.values():
        for name in re.findall(r"\b(?:class|struct)\s+(?:[A-Z_]+(?:\([^)]*\))?\s+)?(\w+)[^;{]*\{", code):
            words_by_class[name].update(re.findall(r"\w+", code))
    for path in codes:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for class_name, function in MEMBER.findall((re.search(r"//.*", line) or [""])[0]):
                if function not in words_by_class[class_name]:
                    fail(path, number, f"{class_name}::{function}() is not there")


def check_facts(path, text, titles):
    """What a comment takes from elsewhere stands in docs/facts.md, under the title that it names."""
    words = re.sub(r"\n\s*//", " ", text)
    for title in FACT.findall(words):
        if re.sub(r"\s+", " ", title) not in titles:
            fail(path, 1, f"docs/facts.md has no \"{title}\"")
    if re.search(r"//.*(\bspikes/|\bfuse-facts\b)", text):
        fail(path, 1, "a comment refers to what is in this repository: docs/facts.md")


def check_words(path, layer, code):
    name = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(code.splitlines(), 1):
        if layer not in EXEMPT and not ERRNO_READERS.search(name) and re.search(r"\berrno\b(?!\.)", line) \
                and not line.lstrip().startswith("#"):
            fail(path, number, "errno is read in base/sys only")
        if layer == "fs" and CHANGES_OF_A_TREE.search(line):
            fail(path, number, "a pool's names and attributes are changed by its Tree")
        starts_thread = re.search(r"\bstd::thread\b(?!::)|\bstd::jthread\b(?!::)|\bpthread_create\b|\bstd::async\b", line)
        if layer not in EXEMPT and name not in THREAD_STARTERS and starts_thread:
            fail(path, number, "threads start in daemon/workers.cc only")
        if name != "base/mutex.h" and BARE_LOCKS.search(line):
            fail(path, number, "locks are those of base/mutex.h, which clang's thread-safety analysis knows")


LOCK = re.compile(r"^( *)(?:mutable |static )?(?:Shared|Fair)?Mutex (\w+)(?: ACQUIRED_BEFORE\(\w+\))?;", re.M)


def check_lock_order(path, layer, code, order):
    """The order of all locks stands in ARCHITECTURE.md: `Class::member_`, or the name of one in a function."""
    if layer in EXEMPT or path == ROOT / "base/mutex.h":
        return
    for lock in LOCK.finditer(code):
        above = reversed(code[:lock.start()].splitlines())
        head = next((line for line in above if re.match(lock.group(1)[2:] + r"\S", line)), "")
        holder = re.match(r" *(?:class|struct) (\w+)", head)
        name = f"{holder.group(1)}::{lock.group(2)}" if holder else lock.group(2)
        if f"`{name}`" in order:
            order[f"`{name}`"] = True
        else:
            fail(path, code[:lock.start()].count("\n") + 1, f"ARCHITECTURE.md, Locks, does not say where {name} stands")


def check_paths(path, layer, code):
    name = path.relative_to(ROOT).as_posix()
    if layer in EXEMPT or layer == "base":
        return
    for number, line in enumerate(code.splitlines(), 1):
        in_pools = layer != "daemon" and re.search(r"std::filesystem::(?!path\b)\w+", line)
        if name not in PATHS_OF_OTHERS and (PATH_RESOLUTIONS.search(line) or in_pools):
            fail(path, number, "paths are resolved by sys::open_beneath, or the file is in PATHS_OF_OTHERS with the reason")
        if name not in READERS_OF_PATHS and re.search(r"\bsys::path_of\(|\barena_?(\.|->)name_of\(", line):
            fail(path, number, "a name is found by find_name (alloc/tree_name.h), which proves it")
        if re.search(r"\bremove_all\(|\brecursive_directory_iterator\b", line):
            fail(path, number, "a tree is as deep as its users make it: no recursion, and one descriptor at a time")


CLASS_HEAD = re.compile(
    r"\b(class|struct|union)\s+(?:[A-Z_]+(?:\([^)]*\))?\s+)?(\w+(?:::\w+)*)(?:\s+final)?\s*(?::[^:].*)?$", re.S)


def declarations(code):
    """What is declared outside function bodies: (its class or "", whether it is public there, its text without bodies,
    the first and the last line of its body or None). A body is a brace block after `)`."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match.group().count("\n"), code, flags=re.M)
    scopes, head, parentheses, braces, line = [["", True]], "", 0, 0, 1
    for char in code:
        line += char == "\n"
        if braces > 0:
            braces += (char == "{") - (char == "}")
            if braces == 0 and ")" in head:
                yield (*scopes[-1], head, (first, line))
                head = ""
            continue
        parentheses += (char == "(") - (char == ")")
        if parentheses > 0 or char not in "{}:;":
            head += char
        elif char == "{":
            type_head = CLASS_HEAD.search(head) if not re.search(r"\benum\b", head) else None
            if type_head:
                scopes.append([f"{scopes[-1][0]}::{type_head.group(2)}".strip(":"), type_head.group(1) != "class"])
            elif re.search(r"\b(namespace|extern)\b", head) and ")" not in head:
                scopes.append(["", True])
            else:
                first, braces = line, 1
                continue
            head = ""
        elif char == "}":
            scopes = scopes[:-1] or scopes
            head = ""
        elif char == ";":
            yield (*scopes[-1], head, None)
            head = ""
        elif re.fullmatch(r"\s*(public|protected|private)\s*", head):
            scopes[-1][1] = head.strip() == "public"
            head = ""
        else:
            head += char


def check_functions(path, declared):
    for _, _, _, body in declared:
        if body and body[1] - body[0] + 1 > FUNCTION_LINES_MAX:
            fail(path, body[0], f"function of {body[1] - body[0] + 1} lines, at most {FUNCTION_LINES_MAX}")


def is_function(text, class_name):
    """Whether a member is a function, but no constructor, destructor or operator, and neither deleted nor defaulted."""
    if re.search(r"\boperator\b|=\s*(delete|default)\s*$|^\s*(using|typedef|friend|static_assert)\b", text):
        return False
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", " ", text)
    name = re.match(r"[^=(]*?(~?\w+)\s*\((?!\*)", text)
    # Words in capitals are annotations of data.
    return bool(name) and not re.fullmatch(rf"~?{class_name}|[A-Z_]+|alignas", name.group(1))


def check_public_functions(path, declared):
    functions = [name for name, is_public, text, _ in declared
                 if name and is_public and is_function(text, name.rpartition("::")[2])]
    for name, count in collections.Counter(functions).items():
        if count > PUBLIC_FUNCTIONS_MAX:
            fail(path, 1, f"{name} has {count} public functions, at most {PUBLIC_FUNCTIONS_MAX}")


def check_text(path, text):
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            fail(path, number, "white space at the end")
        if re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", line):
            fail(path, number, "unfinished work is not marked in the text")
    if text and not text.endswith("\n"):
        fail(path, len(lines), "no newline at the end")
    if path.suffix in (".cc", ".h") and len(lines) > LINES_MAX:
        fail(path, len(lines), f"{len(lines)} lines, at most {LINES_MAX}")


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
    titles = set(re.findall(r"^## (.*)$", (ROOT / "docs/facts.md").read_text(), re.MULTILINE))
    locks = (ROOT / "ARCHITECTURE.md").read_text().partition("## Locks")[2].partition("\n1. ")[2].partition("\n## ")[0]
    order = dict.fromkeys(re.findall(r"`[\w:]+`", locks), False)  # whether the code has it
    check_walks((ROOT / "ARCHITECTURE.md").read_text())
    codes = {}  # the files without their comments
    for path in sorted(ROOT.glob("*.md")):
        check_named_paths(path, path.read_text())
    for layer in LAYERS + EXEMPT + ["docs", "packaging"]:
        for path in sorted((ROOT / layer).rglob("*")):
            if not path.is_file() or path.suffix not in (".cc", ".h", ".sh", ".py", ".txt", ".md"):
                continue
            text = path.read_text()
            check_text(path, text)
            check_named_paths(path, text)
            if path.suffix not in (".cc", ".h"):
                continue
            check_facts(path, text, titles)
            code = codes[path] = without_comments_and_strings(text)
            check_includes(path, layer, text)
            check_rooms(path, layer, text)
            check_words(path, layer, code)
            check_paths(path, layer, code)
            check_lock_order(path, layer, code, order)
            declared = list(declarations(code)) if layer != "tests" else []
            check_functions(path, declared)
            if path.suffix == ".h":
                check_header(path, text)
                if layer not in EXEMPT:
                    check_public_functions(path, declared)
    check_named_functions(codes)
    check_targets()
    for name in [name for name, is_there in order.items() if not is_there]:
        fail(ROOT / "ARCHITECTURE.md", 1, f"there is no lock {name}")
    print("\n".join(failures + [f"{len(failures)} failures"]))
    return 1 if failures else 0


sys.exit(main())
