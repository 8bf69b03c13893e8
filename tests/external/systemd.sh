#!/bin/bash
# packaging/systemd/kvcachefs.service under a systemd of its own (PID 1 of a PID namespace): readiness, reload, the death of
# the serving process, of the supervisor, a hang of it, and the end. An entry in memory has to outlive all but the last.
#
# usage: tests/external/systemd.sh [DIRECTORY-OF-PROGRAMS]; as root; needs systemd, whichever process is PID 1 outside.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
programs=$(cd "${1:-$root/build/dev/bin}" && pwd)
[ -x /lib/systemd/systemd ] || { echo "systemd.sh: no /lib/systemd/systemd here" >&2; exit 1; }

work=$(mktemp -d /tmp/kv-systemd-XXXXXX)
init=
neighbour=
cleanup() {
  if [ -n "$init" ]; then kill -KILL "$init" 2>/dev/null || true; fi
  if [ -n "$neighbour" ]; then kill -TERM "$neighbour" 2>/dev/null || true; fi
  wait 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

mkdir -p "$work/units/kvcachefs.service.d" "$work/mnt" "$work/bin"
cp "$programs/kvcachefsd" "$programs/kvcachefs" "$work/bin"
for target in default sysinit basic shutdown local-fs; do
  printf '[Unit]\nDescription=nothing but what is started here\n' >"$work/units/$target.target"
done
sed "s|/usr/sbin/kvcachefsd|$work/bin/kvcachefsd|; s|/usr/bin/kvcachefs|$work/bin/kvcachefs|; s|/etc/kvcachefs.toml|$work/kvcachefs.toml|" \
  "$root/packaging/systemd/kvcachefs.service" >"$work/units/kvcachefs.service"
# A minute is long for a test.
printf '[Service]\nWatchdogSec=2\n' >"$work/units/kvcachefs.service.d/test.conf"
printf 'mountpoint = "%s"\n[pools.p]\nsize = "64M"\n' "$work/mnt" >"$work/kvcachefs.toml"

# A host may have a second kvcachefs, which is not the service's.
mkdir "$work/neighbour"
"$programs/kvcachefsd" --pool p:size=64M -o "runtime_dir=$work/run,no_supervisor" "$work/neighbour" 2>"$work/neighbour.log" &
neighbour=$!
for _ in $(seq 200); do [ -e "$work/neighbour/.kvcachefs/version" ] || sleep 0.1; done
[ -e "$work/neighbour/.kvcachefs/version" ] || { cat "$work/neighbour.log" >&2; exit 1; }

unshare --mount --pid --fork --cgroup --uts --ipc bash -c '
  mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system
  export container=test SYSTEMD_UNIT_PATH=$0
  exec /lib/systemd/systemd --system --log-target=console --show-status=0' "$work/units" >"$work/log" 2>&1 &
unshare_pid=$!

# until SECONDS COMMAND...: whether it comes true.
until_true() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $deadline ]; then return 1; fi
    sleep 0.1
  done
}
find_init() { init=$(pgrep -P "$unshare_pid") && [ "$(cat "/proc/$init/comm")" = systemd ]; }
ns() { timeout 60 nsenter --target "$init" --mount --pid --cgroup --ipc "$@"; }
control() { ns systemctl "$@"; }
property() { control show --property "$1" --value kvcachefs; }
stat_value() { ns sed -n "s/^$1 //p" "$work/mnt/.kvcachefs/stats"; }

checks=0
# check WHAT COMMAND...
check() {
  local what=$1
  shift
  checks=$((checks + 1))
  if "$@"; then return 0; fi
  echo "systemd.sh: $what: not so" >&2
  control status kvcachefs >&2 || true
  cat "$work/log" >&2
  exit 1
}
equal() { [ "$1" = "$2" ] || { echo "'$1', not '$2'" >&2; return 1; }; }
entry_is_whole() { equal "$(ns sha256sum <"$work/entry" | cut -c1-64)" "$(ns sha256sum "$work/mnt/p/entry" | cut -c1-64)"; }
serves_again() { until_true 20 ns test -e "$work/mnt/.kvcachefs/stats"; }
restarted() { [ "$(property NRestarts)" = "$1" ] && [ "$(property ActiveState)" = active ]; }

until_true 20 find_init || { cat "$work/log" >&2; exit 1; }
check 'systemd runs' until_true 20 control is-system-running
check 'it starts' control start kvcachefs
check 'ready means that it serves' ns test -e "$work/mnt/.kvcachefs/stats"
head -c 8M /dev/urandom >"$work/entry"
ns cp "$work/entry" "$work/mnt/p/entry"
check 'the descriptors are kept' until_true 10 test "$(property NFileDescriptorStore)" = 3

check 'it is reloaded' control reload kvcachefs
check 'by an upgrade' equal "$(stat_value generation)" 1
check 'after a reload the entry is there' entry_is_whole

ns bash -c "kill -KILL $(stat_value pid)"
check 'after the death of who serves the entry is there' entry_is_whole
check 'of which systemd has not heard' equal "$(property NRestarts)" 0

ns bash -c "kill -KILL $(property MainPID)"
check 'the supervisor is started again' until_true 20 restarted 1
check 'and serves' serves_again
check 'after the death of the supervisor the entry is there' entry_is_whole

ns bash -c "kill -STOP $(property MainPID)"
check 'one that hangs is started again' until_true 30 restarted 2
check 'and serves' serves_again
check 'after its hang the entry is there' entry_is_whole

check 'it ends' control stop kvcachefs
check 'well' equal "$(property Result)" success
check 'with the mount' ns bash -c "! mountpoint -q $work/mnt"
check 'and keeps nothing' equal "$(property NFileDescriptorStore)" 0
echo "systemd.sh: $checks checks passed"
