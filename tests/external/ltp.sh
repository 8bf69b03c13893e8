#!/bin/bash
# Runs those tests of LTP that ltp.tests names in a directory on a fresh mount. Exit 0 only if none failed that
# ltp.expected does not name with its reason; those that are named and passed are listed, too.
#
# usage: tests/external/ltp.sh TREE [MODE] [TEST...]; default: all of ltp.tests
# TREE is a built LTP, in place or installed; MODE is one of fresh_mount.sh's (`tmpfs`: a native tmpfs, to compare). Needs root.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/fresh_mount.sh"

[ $# -ge 1 ] || { echo "usage: ltp.sh TREE [MODE] [TEST...]" >&2; exit 2; }
tree=$(cd "$1" && pwd) || exit 2
mode=${2:-passthrough}
shift $(($# > 1 ? 2 : 1))
readonly timeout_s=300

fresh_mount "$mode" 1G
mkdir -m 777 "$mount_pool/d" "$work/logs"
PATH=$PATH:$(find "$tree/testcases" -type f -perm -u+x -printf '%h\n' | sort -u | paste -sd:)
export LTPROOT=$tree LTP_COLORIZE_OUTPUT=n

# The names to run, "FILE NAME" as in ltp.tests.
if [ $# = 0 ]; then
  grep '^[^#]' "$here/ltp.tests" >"$work/tests"
else
  for name in "$@"; do grep -E "^[^#][^ ]* $name\$" "$here/ltp.tests"; done >"$work/tests"
fi
: >"$work/failed"
passed=0 skipped=0 failed=0
while read -r file name; do
  command=$(sed -n "s/^$name[[:space:]]\+//p" "$tree/runtest/$file" | head -n 1)
  if [ -z "$command" ] || ! type -P "${command%% *}" >/dev/null; then
    echo "$name: not in this tree"
    skipped=$((skipped + 1))
    continue
  fi
  # Tests of system calls make a directory of their own in $TMPDIR, and look for helpers in the one they are started in.
  directory=$mount_pool/d
  [ "$file" != syscalls ] || directory=$(dirname "$(type -P "${command%% *}")")
  (cd "$directory" && TMPDIR=$mount_pool/d timeout --kill-after=10 "$timeout_s" bash -c "$command") >"$work/logs/$name" 2>&1 </dev/null
  status=$?
  # 32: what it needs is not there; 4: it only warns.
  case $status in
    0 | 4) passed=$((passed + 1)) ;;
    32) skipped=$((skipped + 1)) ;;
    *)
      failed=$((failed + 1))
      echo "$name" >>"$work/failed"
      echo "--- $name ($status):"
      grep -E 'FAIL|BROK|Killed' "$work/logs/$name" | head -n 8 || tail -n 5 "$work/logs/$name"
      ;;
  esac
done <"$work/tests"

expected_failures "$here/ltp.expected" "$mode" >"$work/expected"
sort -u -o "$work/failed" "$work/failed"
unexpected=$(comm -23 "$work/failed" "$work/expected")
passed_all_the_same=$(comm -23 <(cut -d' ' -f2 "$work/tests" | sort -u | comm -12 - "$work/expected") "$work/failed")
# shellcheck disable=SC2086 -- one line of names
[ -z "$passed_all_the_same" ] || echo "expected to fail, and did not:" $passed_all_the_same
# shellcheck disable=SC2086
[ -z "$unexpected" ] || echo "failed and not expected to:" $unexpected
echo "ltp ($mode): $passed passed, $failed failed, $((failed - $(grep -c . <<<"$unexpected"))) of them expected; $skipped not run"
[ "$passed" -gt 0 ] && [ -z "$unexpected" ]
