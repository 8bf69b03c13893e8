#!/bin/bash
# Runs fsx of xfstests on a fresh mount: random reads, writes, maps, truncates, punches and copies of one file, each
# checked, with several sets of options. Exit 0 only if no run found a difference. XFSTESTS-TREE is a built xfstests with
# libaio and liburing.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/fresh_mount.sh"

[ $# -ge 1 ] || { echo "usage: fsx.sh XFSTESTS-TREE [MODE] [SECONDS] [SEED]" >&2; exit 2; }
tree=$(cd "$1" && pwd) || exit 2
mode=${2:-passthrough}
seconds=${3:-60}
seed=${4:-$RANDOM}
fsx=$tree/ltp/fsx

[ -x "$fsx" ] || { echo "fsx.sh: $tree is not built" >&2; exit 2; }

fresh_mount "$mode" 256M
# Each line: a name and the options of fsx. The file of the first is what clients use; O_DIRECT goes without maps.
sets="plain -l 262144
large -l 8388608 -o 2097152
reopened -c 20 -l 1048576
direct -Z -R -W -r 512 -w 512 -l 262144
aio -A -c 50 -l 524288
uring -U -c 50 -l 524288
pages -r 4096 -w 4096 -t 4096 -l 262144"
# A file that stays open is never cold.
if [[ $mode == spill* ]]; then sets=$(sed '/ -c /!s/$/ -c 30/' <<<"$sets"); fi
count=$(grep -c . <<<"$sets")
failed=()
while read -r name options; do
  mkdir "$work/$name"
  # shellcheck disable=SC2086 -- the options are words
  "$fsx" $options -q -S "$seed" --duration="$((seconds / count > 0 ? seconds / count : 1))" -P "$work/$name" \
    "$mount_pool/$name" >"$work/$name.out" 2>&1 || {
    failed+=("$name")
    echo "--- fsx $options -S $seed ($mode):"
    tail -n 30 "$work/$name.out"
  }
  echo "$name: $(tail -n 1 "$work/$name.out")"
  rm -f "$mount_pool/$name"*
done <<<"$sets"
echo "fsx ($mode): $count runs of $((seconds / count)) s, seed $seed, failed: ${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
