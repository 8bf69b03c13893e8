#!/usr/bin/env python3
"""A connector in standard-library Python: what an inference server does to keep its KV cache in a kvcachefs pool.

    connector.py POOL     (the directory of a pool, such as /mnt/kv/llama)

It stores two blocks of a prompt with their tokens, finds them again for a longer prompt in one call, pins and maps
them, and has the rest of a second prompt brought from the disk meanwhile.
"""
import mmap
import os
import struct
import sys

BLOCK_TOKENS = 16
MODEL = "example-8b/bf16/tp1"


class Pool:
    def __init__(self, directory):
        self.directory = directory

    def path(self, name):
        return os.path.join(self.directory, name)

    def store(self, name, content, tokens, parent=None, **metadata):
        """All at once under its final name, or not at all: readers never see a part of a block."""
        temporary = self.path(f"{name}.tmp.{os.getpid()}")
        with open(temporary, "wb") as file:
            file.write(content)
        os.setxattr(temporary, "user.kv.model", MODEL.encode())
        os.setxattr(temporary, "user.kv.tokens", struct.pack(f"<{len(tokens)}I", *tokens))
        if parent:
            os.setxattr(temporary, "user.kv.parent", parent.encode())
        for key, value in metadata.items():
            os.setxattr(temporary, f"user.kv.{key}", str(value).encode())
        os.rename(temporary, self.path(name))

    def query(self, text):
        """One exchange with the pool: the first line's pairs, and the rows."""
        with open(self.path(".pool/match"), "r+b", buffering=0) as file:
            view = memoryview(text)
            while view:
                view = view[file.write(view):]
            lines = file.readall().decode(errors="surrogateescape").splitlines()
        return dict(pair.split("=", 1) for pair in lines[0].split()), [line.split("\t") for line in lines[1:]]

    def longest_prefix(self, tokens):
        """How many tokens are cached, and the entries that hold them: (first token, end, tier, name)."""
        model = MODEL.encode()
        head = b"KVQ1" + struct.pack("<3I", 1, len(model), len(tokens))
        pairs, rows = self.query(head + model + struct.pack(f"<{len(tokens)}I", *tokens))
        return int(pairs["matched_tokens"]), [(int(row[0]), int(row[1]), row[2], row[4]) for row in rows]

    def pin(self, name, pinned=True):
        os.setxattr(self.path(name), "user.kvcachefs.pinned", b"1" if pinned else b"0")

    def map(self, name):
        """The bytes where they are: nothing is copied. Opening an entry on the disk brings it to memory first."""
        with open(self.path(name), "rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def prefetch(self, names_and_priorities):
        """Higher comes first; the pool's owner may ask. Without a disk tier there is nothing to bring."""
        with open(self.path(".pool/prefetch"), "wb", buffering=0) as file:
            for name, priority in names_and_priorities:
                file.write(f"{name}\t{priority}\n".encode())

    def statistics(self):
        with open(self.path(".pool/stats")) as file:
            return dict(line.split(None, 1) for line in file.read().splitlines())


def main():
    pool = Pool(sys.argv[1])
    system = list(range(1000, 1000 + 2 * BLOCK_TOKENS))
    pool.store("block-0", b"K" * (1 << 20), system[:BLOCK_TOKENS], agent="planner", layer=0)
    pool.store("block-1", b"V" * (1 << 20), system[BLOCK_TOKENS:], parent="block-0", agent="planner", layer=0)

    prompt = system + list(range(5000, 5040))
    cached, entries = pool.longest_prefix(prompt)
    print(f"{cached} of {len(prompt)} tokens are cached, in {len(entries)} entries")
    for first, end, tier, name in entries:
        pool.pin(name)
        with pool.map(name) as content:
            print(f"tokens {first} to {end}: {name}, {tier}, {len(content)} bytes, begins with {content[:1]!r}")
        pool.pin(name, False)
    if pool.statistics().get("spill_size_bytes", "0") != "0":
        pool.prefetch([(name, 10 - number) for number, (_, _, _, name) in enumerate(entries)])
    print(f"the pool holds {pool.statistics()['entries']} entries")


if __name__ == "__main__":
    main()
