#!/usr/bin/env python3
"""Stores entries whose bytes it knows, changes and reads them, and compares: what runs beside a stress of the same pool.

usage: pattern_writer.py write DIRECTORY STATE SECONDS SEED   until then; then all are fsynced, and STATE has their checksums
       pattern_writer.py verify DIRECTORY STATE               that they are there, all of them, whole
Exit 1 at the first byte that is another's and the first call that fails, but for ENOSPC, since the stress may fill the pool with what it
has in use.
"""

import errno
import hashlib
import json
import mmap
import os
import random
import sys
import time

ENTRIES = 64
SIZE_MAX = 1 << 20
CHUNK_MAX = 1 << 18


class Wrong(Exception):
    pass


mappings = {"done": 0}


def read(path, dice):
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > 0 and dice.random() < 0.3:
            try:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                    mappings["done"] += 1
                    return view[:]
            except OSError as error:
                raise Wrong(f"{path}: cannot be mapped: {error}") from error
        return file.read()


def compare(name, have, want):
    if have == want:
        return
    at = next((i for i, (a, b) in enumerate(zip(have, want)) if a != b), min(len(have), len(want)))
    raise Wrong(f"{name}: {len(have)} bytes for {len(want)}, the first other one at {at}, there: {have[at:at + 16].hex()}")


def put(directory, name, content, dice):
    """As caches store: under a temporary name, renamed when it is whole."""
    path = os.path.join(directory, f".{name}.new")
    with open(path, "wb", buffering=0) as file:
        at = 0
        while at < len(content):
            at += file.write(content[at:at + dice.randint(1, CHUNK_MAX)])
        if dice.random() < 0.1:
            os.fsync(file.fileno())
    os.rename(path, os.path.join(directory, name))


def patch(directory, name, content, dice):
    """In place, within the entry, past its end, or by cutting it."""
    with open(os.path.join(directory, name), "r+b", buffering=0) as file:
        if dice.random() < 0.2:
            content = content[:dice.randint(0, len(content))]
            file.truncate(len(content))
            return content
        offset = dice.randint(0, len(content))
        piece = dice.randbytes(dice.randint(1, CHUNK_MAX))
        piece = piece[:os.pwrite(file.fileno(), piece, offset)]
        return content[:offset] + piece + content[offset + len(piece):]


def change(directory, name, contents, dice, counts):
    """Stores or patches `name`; an entry that there is no room for stays what it was."""
    try:
        if name not in contents or dice.random() < 0.6:
            content = dice.randbytes(dice.randint(0, SIZE_MAX))
            put(directory, name, content, dice)
            counts["stored"] += 1
        else:
            content = patch(directory, name, contents[name], dice)
            counts["changed"] += 1
        contents[name] = content
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        counts["refused"] += 1
        if os.path.exists(os.path.join(directory, f".{name}.new")):
            os.unlink(os.path.join(directory, f".{name}.new"))


def write(directory, state, seconds, seed):
    dice = random.Random(seed)
    contents = {}
    counts = {"stored": 0, "changed": 0, "read": 0, "removed": 0, "refused": 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = f"entry{dice.randrange(ENTRIES)}"
        what = dice.random()
        if name not in contents or what < 0.5:
            change(directory, name, contents, dice, counts)
        elif what < 0.95:
            compare(name, read(os.path.join(directory, name), dice), contents[name])
            counts["read"] += 1
        else:
            os.unlink(os.path.join(directory, name))
            del contents[name]
            counts["removed"] += 1
    for name, content in contents.items():
        compare(name, read(os.path.join(directory, name), dice), content)
        sync(os.path.join(directory, name))
    sync(directory)
    with open(state, "w", encoding="ascii") as file:
        json.dump({name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}, file)
    counts["mapped"] = mappings["done"]
    print("pattern_writer:", ", ".join(f"{count} {what}" for what, count in counts.items()), f"(seed {seed})")


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def verify(directory, state):
    with open(state, encoding="ascii") as file:
        checksums = json.load(file)
    if sorted(os.listdir(directory)) != sorted(checksums):
        raise Wrong(f"names: {sorted(set(os.listdir(directory)) ^ set(checksums))} are only there, or only stored")
    for name, checksum in checksums.items():
        if hashlib.sha256(read(os.path.join(directory, name), random.Random(0))).hexdigest() != checksum:
            raise Wrong(f"{name}: another checksum than when it was stored")
    print(f"pattern_writer: {len(checksums)} entries are whole")


def main(words):
    if len(words) == 5 and words[0] == "write":
        write(words[1], words[2], float(words[3]), int(words[4]))
    elif len(words) == 3 and words[0] == "verify":
        verify(words[1], words[2])
    else:
        sys.exit(__doc__)


try:
    main(sys.argv[1:])
except (Wrong, OSError) as error:
    sys.exit(f"pattern_writer: {error}")
