#!/bin/bash
# Runs pjdfstest on a fresh mount. Exit 0 only if nothing failed that pjdfstest.expected does not name with its reason.
#
# usage: tests/external/pjdfstest.sh TREE [MODE] [TEST-FILE-OR-FOLDER...]; default: all of them, as root
# TREE is a built pjdfstest; MODE is one of fresh_mount.sh's (`tmpfs`: a native tmpfs, to compare).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/fresh_mount.sh"

[ $# -ge 1 ] || { echo "usage: pjdfstest.sh TREE [MODE] [TEST-FILE-OR-FOLDER...]" >&2; exit 2; }
tree=$(cd "$1" && pwd) || exit 2
mode=${2:-passthrough}
shift $(($# > 1 ? 2 : 1))
[ -x "$tree/pjdfstest" ] || { echo "pjdfstest.sh: $tree is not built" >&2; exit 2; }
tests=("$tree/tests")
[ $# = 0 ] || tests=("${@/#/$tree/tests/}")

fresh_mount "$mode" 256M
mkdir "$mount_pool/d"
cd "$mount_pool/d" || exit 1
# Their scripts find the tree by the folder they are run in.
prove -r -Q -j "${JOBS:-8}" "${tests[@]}" >"$work/results" 2>&1
status=$?
sed -i "s,$tree/tests/,," "$work/results"
cat "$work/results"

# What failed, a line "FILE:NUMBER" each; a script that did not end well is "FILE:end".
awk '
  function numbers(text, list, range, n, i, k) {
    n = split(text, list, /[ ,]+/)
    for (i = 1; i <= n; i++) {
      if (split(list[i], range, "-") == 2) for (k = range[1]; k <= range[2]; k++) print file ":" k
      else if (list[i] != "") print file ":" list[i]
    }
  }
  /\.t +\(Wstat: / { file = $1; failed = 0; if ($0 !~ /Wstat: 0 /) print file ":end"; next }
  /^  Failed tests?: / { failed = 1; sub(/.*: +/, ""); numbers($0); next }
  failed && /^ +[0-9][-0-9, ]*$/ { numbers($0); next }
  { failed = 0 }' "$work/results" | sort -u >"$work/failed"
expected_failures "$here/pjdfstest.expected" "$mode" >"$work/expected"
unexpected=$(comm -23 "$work/failed" "$work/expected")
[ -z "$unexpected" ] || printf 'failed and not expected to:\n%s\n' "$unexpected"
echo "pjdfstest ($mode): $(grep -E '^Files=' "$work/results" || echo 'no result'), $(wc -l <"$work/failed") failed, $(
  comm -12 "$work/failed" "$work/expected" | wc -l) of them expected"
# prove fails for more reasons than failed tests; with those alone, the list decides.
grep -qE '^Files=[1-9]' "$work/results" && [ -z "$unexpected" ] && { [ $status = 0 ] || [ -s "$work/failed" ]; }
