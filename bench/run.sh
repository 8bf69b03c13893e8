#!/bin/bash
# Builds the release preset and runs the benchmarks: the side-by-side table, and the small programs with --micro.
# Must be root: it mounts. Under 10 minutes on 2 cores; the figures of a machine that does something else mean little.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bench/run.sh [--quick] [--only GROUP]... [--write] [--micro]
  --quick   little of everything, to see that it works
  --only    read, write, daemon-io, open, fill, waiting, queries, directory, trace or spill (may be repeated)
  --write   put the table into bench/README.md
  --micro   the small programs (policies, counters) too
TEXT
}

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release
options=()
micro=no
while [ $# -gt 0 ]; do
  case $1 in
    --quick) options+=(--quick); shift ;;
    --only) options+=(--only "${2:?--only needs a group}"); shift 2 ;;
    --write) options+=(--write "$root/bench/README.md"); shift ;;
    --micro) micro=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[ "$(id -u)" = 0 ] || { echo "bench/run.sh: must run as root: it mounts file systems" >&2; exit 1; }

cd "$root"
log=$(mktemp /tmp/kvcachefs-bench.XXXXXX)
# The transport over io_uring is off in the kernel until root switches it on; it is as before when we leave.
uring=/sys/module/fuse/parameters/enable_uring
uring_before=$(cat "$uring" 2>/dev/null || echo absent)
restore() {
  if [ "$uring_before" = N ]; then echo N >"$uring"; fi
  rm -f "$log"
}
trap restore EXIT
if [ "$uring_before" = N ]; then echo Y >"$uring"; fi

{ cmake --preset release && cmake --build "$build" -j"$(nproc)" --target side_by_side micro_bench; } >"$log" 2>&1 ||
  { cat "$log" >&2; exit 1; }
"$build/bench/side_by_side" --json "$build/bench.json" "${options[@]}"
echo "JSON: $build/bench.json"
if [ "$micro" = yes ]; then "$build/bench/micro_bench"; fi
