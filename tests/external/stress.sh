#!/bin/bash
# A stress program on a fresh mount whose serving process is killed all the time and, in the modes with a disk tier, whose
# entries are evicted all the time; beside it pattern_writer.py. Then: the program has ended well, all that was written beside it is whole,
# `kvcachefs check --data` agrees with the disk, and after a restart all is whole again. Exit 0 only if all of it holds.
#
# usage: tests/external/stress.sh [--user UID] [--ends-well STATUS,...] MODE SECONDS COMMAND...
#   MODE is one of fresh_mount.sh's. COMMAND runs as UID (default: 65534) in a directory of its own in the pool; it is told to end after
#   SECONDS. --ends-well: the statuses that mean that it found nothing (default: 0; 143 is the order to end). Needs root.
# For example, fsstress out of a built tree of xfstests:
#   tests/external/stress.sh spill 60 TREE/ltp/fsstress -d . -l 0 -n 1000 -p 4
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/fresh_mount.sh"

uid=65534
ends_well=0
while [ $# -gt 0 ]; do
  case $1 in
    --user) uid=${2:?}; shift 2 ;;
    --ends-well) ends_well=${2:?}; shift 2 ;;
    *) break ;;
  esac
done
[ $# -ge 3 ] || { sed -n '/^# usage/,/^#   tests/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
mode=$1 seconds=$2
shift 2
seed=${SEED:-$RANDOM}
programs=$(dirname "${KVCACHEFSD:-$here/../../build/dev/bin/kvcachefsd}")

failed=0
# holds WHAT COMMAND...
holds() {
  local what=$1
  shift
  "$@" || { echo "stress.sh: not so: $what" >&2; failed=1; }
}

as_user() { setpriv --reuid "$1" --regid "$1" --clear-groups -- "${@:2}"; }
is_among() { [[ ",$2," == *",$1,"* ]]; }

export KVCACHEFS_TEST_KILL=${KVCACHEFS_TEST_KILL:-1}
# An entry that there is no memory for is served from the disk, where it cannot be mapped: with 96M what is open, not yet known to be
# closed, or on its way back fills the pool now and then, with 200M it came near.
case $mode in spill*) size=512M ;; *) size=256M ;; esac
fresh_mount "$mode" "$size" q
mkdir -m 777 "$work/state"
# Without a disk tier a pool that is full discards entries: those that are to be there are in another then.
patterns=$work/mnt/q/patterns
[ -z "${spill_file:-}" ] || patterns=$mount_pool/patterns
install -d -o "$uid" -g "$uid" "$mount_pool/stress"
# Another user than the stress: a quarter of the descriptors is all that one user's files get (in daemon I/O one for each open file), and
# a stressor that opens all it can takes that.
neighbour=65533
install -d -o "$neighbour" -g "$neighbour" "$patterns"

as_user "$neighbour" /usr/bin/python3 "$here/pattern_writer.py" write "$patterns" "$work/state/sums" "$seconds" "$seed" &
writer=$!
# Holes go to the disk as zeros: without a bound a stress makes files of gigabytes, most of it holes. Past it: EFBIG.
(trap '' XFSZ && ulimit -f 32768 && cd "$mount_pool/stress" && as_user "$uid" timeout --kill-after=60 "$((seconds + 2))" "$@") >"$work/stress.out" 2>&1
status=$?
# 124: told to end by timeout, when it has no end of its own.
holds "the stress ends well (it ended with $status)" is_among "$status" "$ends_well,124"
[ "$failed" = 0 ] || tail -n 40 "$work/stress.out" >&2
wait "$writer"
holds 'all that is written beside it is whole' [ $? = 0 ]
deaths=0
if [ "$mode" != tmpfs ]; then
  deaths=$(($(grep -c ' serves ' "$work/log") - 1))
  [ "$KVCACHEFS_TEST_KILL" != 1 ] || holds "the serving process died ($deaths times)" [ "$deaths" -gt "$((seconds / 10))" ]
  holds 'the daemon ends well' stop_daemon
fi
if [ -n "${spill_file:-}" ]; then
  holds 'the disk tier is whole' "$programs/kvcachefs" check p --spill "$spill_file" --data
  start_daemon
  holds 'after a restart all is whole' /usr/bin/python3 "$here/pattern_writer.py" verify "$patterns" "$work/state/sums"
fi
echo "stress.sh ($mode, uid $uid): ${1##*/} for $seconds s, $deaths deaths: $([ "$failed" = 0 ] && echo all holds || echo FAILED)"
exit "$failed"
