#!/usr/bin/env python3
"""kvcachefs-generator finds the paths of a configuration that kvcachefsd finds, in each form that TOML has for them, and writes them
as systemd reads them. tests/external/systemd.sh has systemd read them.

usage: tests/style/generator_check.py ROOT DIRECTORY-OF-PROGRAMS
"""
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

root, programs = Path(sys.argv[1]), Path(sys.argv[2])
failures = []
SAMPLE = r"""
mountpoint = "/mnt/kv"
state_dir = "/state" # state_dir = "/comment"
# catalog = "/comment"
pools.dotted = { size = "1M" , spill = "/dotted", catalog = "/dotted.catalog" } # '"
[pools.basic]
size = "1M"
spill = "/data/a \"b\" \\ c#d"
spill_size = "1G"
"catalog"="/data/a 100% b"
[pools.literal]
size = "1M"
  'spill'  =  '/data/"a" \ b#c' # it's
catalog='/data/100% b'
[pools.multi-line]
size = "1M"
spill = TRIPLE/data/m \u00e9\U0001F600 \\u0041 \u0022%\u0025TRIPLE
catalog = '''
/data/n \u00e9 # c''' # '''
[pools.memory]
size = "1M"
spill = "none"
""".replace("TRIPLE", '"""')
FURTHER = '[pools.further]\nsize = "1M"\nspill = "/data/further"'  # with no newline at the end
# The paths, and how systemd is to be told of them: in quotes, where a backslash escapes what follows it.
EXPECTED = {
    "/state": '"/state"',
    "/dotted": '"/dotted"',
    "/dotted.catalog": '"/dotted.catalog"',
    r'/data/a "b" \ c#d': r'"/data/a \"b\" \\ c#d"',
    "/data/a 100% b": '"/data/a 100%% b"',
    r'/data/"a" \ b#c': r"""'/data/"a" \\ b#c'""",
    "/data/100% b": "'/data/100%% b'",
    '/data/m é😀 \\u0041 "%%': r'"/data/m é😀 \\u0041 \"%%%%"',
    r"/data/n \u00e9 # c": r"'/data/n \\u00e9 # c'",
    "/data/further": '"/data/further"',
}


def generated(config):
    """The drop-in, or None if there is none."""
    with tempfile.TemporaryDirectory() as units:
        run = subprocess.run([root / "packaging/systemd/kvcachefs-generator", units, units, units], capture_output=True, text=True, timeout=60,
                             env=os.environ | {"KVCACHEFS_CONFIG": str(config)})
        if run.returncode or run.stdout or run.stderr:
            failures.append(f"of {config.name}: status {run.returncode}: {run.stdout}{run.stderr}")
        files = [path for path in Path(units).rglob("*") if path.is_file()]
        if [str(path.relative_to(units)) for path in files] not in ([], ["kvcachefs.service.d/50-paths.conf"]):
            failures.append(f"of {config.name}: it wrote {files}")
        return files[0].read_text() if files else None


with tempfile.TemporaryDirectory() as folder:
    config = Path(folder) / "sample.toml"
    (Path(folder) / "sample.d").mkdir()
    (Path(folder) / "sample.d/further.toml").write_text(FURTHER)
    config.write_text(SAMPLE)
    printed = subprocess.run([programs / "kvcachefsd", "--config", config, "--print-config"], capture_output=True, text=True)
    if printed.returncode:
        sys.exit(f"kvcachefsd does not take the sample: {printed.stderr}")
    read = tomllib.loads(printed.stdout)
    paths = {pool[key] for pool in read["pools"].values() for key in ("spill", "catalog") if key in pool} | {read["state_dir"]}
    if paths - {"none"} != set(EXPECTED):
        failures.append(f"kvcachefsd reads other paths: {sorted(paths ^ set(EXPECTED))}")
    expected = "".join(f"RequiresMountsFor={text}\n" for text in EXPECTED.values())
    if (drop_in := generated(config)) != "[Unit]\n" + expected:
        failures.append(f"the drop-in is\n{drop_in}, not\n[Unit]\n{expected}")

    # The boot would wait for what another process writes.
    fifos = Path(folder) / "sample.d/fifo.toml", Path(folder) / "fifo.toml"
    for fifo in fifos:
        os.mkfifo(fifo)
    if generated(config) != drop_in:
        failures.append("a FIFO beside the files changes what it makes")
    if (drop_in := generated(fifos[1])) is not None:
        failures.append(f"of a FIFO it made {drop_in}")

    config = Path(folder) / "empty.toml"
    for text in (None, "", '[pools.p]\nsize = "1M"\n#spill = "/data/p"\n', 'spill = "'):
        if text is not None:
            config.write_text(text)
        if (drop_in := generated(config)) is not None:
            failures.append(f"of {text!r} it made {drop_in}")

for failure in failures:
    print(failure)
print(f"{len(failures)} failures: {len(EXPECTED)} paths")
sys.exit(1 if failures else 0)
