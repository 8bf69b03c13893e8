# Writes the sources of tier/survivors as a later version might have them: longer records of open handles, and one more section.
#
# usage: tomorrow.py SOURCES DESTINATION
import pathlib
import sys

CHANGES = {
    "open_handles.h": [("    uint16_t from_disk;\n", "    uint16_t from_disk;\n    uint64_t of_tomorrow;\n")],
    "open_handles.cc": [("  record.unique = handle.unique;\n", "  record.unique = handle.unique;\n  record.of_tomorrow = handle.unique;\n")],
    "survivors.cc": [
        ("  KeptInodes::Shared kept_inodes;\n};", "  KeptInodes::Shared kept_inodes;\n  uint64_t of_tomorrow;\n};"),
        ("  static constexpr Section kSections[] = {\n",
         "  static constexpr Section kSections[] = {\n      {\"tom1\", 0, offsetof(Layout, of_tomorrow), 8, 1},\n"),
    ],
}

source, destination = map(pathlib.Path, sys.argv[1:])
destination.mkdir(parents=True, exist_ok=True)
for path in source.iterdir():
    text = path.read_text()
    for today, tomorrow in CHANGES.get(path.name, []):
        if text.count(today) != 1:
            sys.exit(f"{path} does not have once: {today}")
        text = text.replace(today, tomorrow)
    (destination / path.name).write_text(text)
