#!/bin/bash
# Runs pjdfstest (https://github.com/pjd/pjdfstest) on a fresh mount. Exit 0 only if nothing failed that is not
# expected to; the files that fail are listed. The source tree is yours to fetch; it is built in place.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/fresh_mount.sh"

[ $# -ge 1 ] || { echo "usage: pjdfstest.sh SOURCE-TREE [MODE] [TEST-FILE-OR-FOLDER...]" >&2; exit 2; }
tree=$(cd "$1" && pwd) || exit 2
mode=${2:-passthrough}
shift $(($# > 1 ? 2 : 1))

if [ ! -x "$tree/pjdfstest" ]; then
  (cd "$tree" && autoreconf -ifs && ./configure && make pjdfstest) >"$tree/build.log" 2>&1 ||
    { echo "pjdfstest does not build: $tree/build.log" >&2; exit 1; }
fi
tests=("$tree/tests")
[ $# = 0 ] || tests=("${@/#/$tree/tests/}")

fresh_mount "$mode" 256M
mkdir "$mount_pool/d"
cd "$mount_pool/d" || exit 1
prove -r -Q -j "${JOBS:-8}" "${tests[@]}" >"$work/results" 2>&1
status=$?
# Their scripts find the tree by the folder they are run in.
sed "s,$tree/tests/,," "$work/results"
echo "pjdfstest ($mode): $(grep -E '^Files=' "$work/results" || echo 'no result'), $(
  grep -cE 'Failed: [1-9][0-9]*\)|Wstat: [1-9]' "$work/results") files with failures"
exit "$status"
