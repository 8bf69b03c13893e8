#!/usr/bin/env python3
"""The manual pages name what the programs take, and nothing else: the commands and options of --help, the settings of a pool and
of the daemon with their defaults, the control files, and in kvcachefs.toml(5) the keys of the file. Their tables are shown.

usage: tests/style/manual_check.py ROOT DIRECTORY-OF-PROGRAMS
"""
import re
import subprocess
import sys
from pathlib import Path

root, programs = Path(sys.argv[1]), Path(sys.argv[2])
failures = []


def page(name):
    """The text without the requests and escapes of roff."""
    text = (root / "packaging/man" / name).read_text()
    text = re.sub(r"\\f[BRIP]", "", text).replace("\\-", "-").replace("\\&", "")
    return re.sub(r"^\.[A-Z]{1,2}\b", "", text, flags=re.M).replace('"', " ")


def help_of(program, *arguments):
    return subprocess.run([programs / program, *arguments, "--help"], capture_output=True, text=True, check=True).stdout


def options_in(text):
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text))


def words_in(text):
    return set(re.findall(r"[\w.]+", text))


def compare(what, taken, text, also=()):
    """Each of `taken` is in the page."""
    if not taken:
        failures.append(f"{what}: nothing is found to compare")
    for word in sorted(set(taken) - words_in(text) - set(also)):
        failures.append(f"{what}: {word} is not there")


def table(path, pattern):
    return re.findall(pattern, (root / path).read_text())


pool_settings = table("tier/pool_options.cc", r'\n    \{"(\w+)", set')
daemon_settings = table("daemon/config.h", r'\n    \{"(\w+)", &Config::') + ["runtime_dir", "state_dir"]
pool_files = table("fs/control/pool_files.cc", r'\.name = "([\w.]+)"')
server_files = table("fs/control/server_files.cc", r'\.name = "([\w.]+)"')

daemon_page, tool_page, file_page = page("kvcachefsd.8"), page("kvcachefs.1"), page("kvcachefs.toml.5")
compare("kvcachefsd.8, keys of a pool", pool_settings, daemon_page)
compare("kvcachefsd.8, options of the mount", daemon_settings, daemon_page)
compare("kvcachefsd.8, control files", pool_files + server_files, daemon_page)
compare("mount.kvcachefs.8", pool_settings + daemon_settings + ["config"], page("mount.kvcachefs.8"))
compare("kvcachefs.toml.5", pool_settings + daemon_settings + ["mountpoint"], file_page)

# A default that the page names is the one that the daemon has.
config = subprocess.run([programs / "kvcachefsd", "--print-config", "--pool", "p:size=64M", "/mnt/p"], capture_output=True, text=True,
                        check=True).stdout
defaults = dict(re.findall(r'^(\w+) = "?([^"\n]*)"?$', config, flags=re.M))
named = 0
for entry in re.split(r"^\.TP\n", (root / "packaging/man/kvcachefsd.8").read_text(), flags=re.M):
    heading, _, text = entry.partition("\n")
    told = re.search(r"^Default.*\n.*", text.replace("\\-", "-"), flags=re.M)
    for name in set(re.findall(r"[a-z_]+", heading)) & set(pool_settings + daemon_settings) if told else ():
        if name in defaults and name != "size":  # which is given above
            named += 1
            if not re.search(rf"(?<![\w/]){re.escape(defaults[name])}(?![\w/])", told[0]):
                failures.append(f"kvcachefsd.8, {name}: the default is {defaults[name]}, not: {told[0]}")
if named < 10:
    failures.append(f"kvcachefsd.8: only {named} defaults are found")

# --help says how each is called; the daemon's own lists are those of the settings.
daemon_help = help_of("kvcachefsd")
for option in options_in(daemon_help) - {"--help"} - options_in(daemon_page):
    failures.append(f"kvcachefsd.8: {option} is not there")
for option in options_in(daemon_page) - options_in(daemon_help):
    if not re.search(rf"(mount|systemctl|kvcachefs|umount)[^\n]*{option}\b", daemon_page):
        failures.append(f"kvcachefsd.8: kvcachefsd takes no {option}")

tool_help = help_of("kvcachefs")
commands = re.findall(r"^  ([a-z]+) {2,}", tool_help.split("Subcommands:", 1)[1], flags=re.M)
compare("kvcachefs.1, commands", commands, tool_page)
taken = options_in(tool_help)
for command in commands:
    taken |= options_in(help_of("kvcachefs", command))
for option in sorted(taken - {"--help"} - options_in(tool_page)):
    failures.append(f"kvcachefs.1: {option} is not there")
for option in sorted(options_in(tool_page) - taken):
    if not re.search(rf"(kvcachefsd|systemctl)[^\n]*{option}\b", tool_page):
        failures.append(f"kvcachefs.1: kvcachefs takes no {option}")

# man(1) runs tbl for a page that asks for it in its first line.
for file in sorted((root / "packaging/man").iterdir()):
    text = file.read_text()
    if (".TS\n" in text) != text.startswith("'\\\" t\n"):
        failures.append(f"{file.name}: a page with tables, and no other, begins with '\\\" t")

for failure in failures:
    print(failure)
print(f"{len(failures)} failures: {len(commands)} commands, {len(taken)} options, {len(pool_settings)} settings of a pool")
sys.exit(1 if failures or len(commands) < 15 or len(pool_settings) < 20 else 0)
