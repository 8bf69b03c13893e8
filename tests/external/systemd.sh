#!/bin/bash
# packaging/systemd/kvcachefs.service under a systemd of its own (own_systemd.sh), hardened as it is: disks that come late, readiness,
# what clients and administrators do, the metrics by their unit, reload, the death of the serving process, of the supervisor, a hang of
# it, and the end. The content of memory and disk has to outlive all but the last. Then a wrong configuration, and last the same
# service over io_uring, if the kernel has it.
#
# usage: tests/external/systemd.sh [DIRECTORY-OF-PROGRAMS]; as root; needs systemd, whichever process is PID 1 outside.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
programs=$(cd "${1:-$root/build/dev/bin}" && pwd)
[ -x /lib/systemd/systemd ] || { echo "systemd.sh: no /lib/systemd/systemd here" >&2; exit 1; }
. "$root/tests/external/own_systemd.sh"

# hardened UNIT MOST: its exposure.
hardened() {
  local exposure
  exposure=$(systemd-analyze security --offline=true "$root/packaging/systemd/$1.service" |
    sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p')
  echo "systemd.sh: exposure of $1: $exposure"
  awk "BEGIN { exit !(${exposure:-11} <= $2) }"
}
# The mask of those that the unit names.
capabilities() {
  local names
  names=$(sed -n 's/^CapabilityBoundingSet=//p' "$root/packaging/systemd/kvcachefs.service" | tr 'A-Z\n ' 'a-z,,')
  setpriv --bounding-set "-all,$(sed 's/cap_/+/g; s/,$//' <<<"$names")" sed -n 's/^CapBnd:\t//p' /proc/self/status
}
check 'the unit is hardened' hardened kvcachefs 5.0
check 'that of the metrics, too' hardened kvcachefs-metrics 1.5

# The daemon's mount point is on its command line alone, as a drop-in may have it. A minute is long for a test.
mount=$work/mnt
late=$work/late\ 100%  # systemd has both characters escaped
metrics_port=19413
mkdir -p "$mount" "$late" "$work/units/kvcachefs.service.d" "$work/units/kvcachefs-metrics.service.d"
# Python has no name for cachestat(2): 451 everywhere.
newest_call='import ctypes, sys; c = ctypes.CDLL(None, use_errno=True); c.syscall(451, -1, 0, 0, 0); open(sys.argv[1], "w").write(str(ctypes.get_errno()))'
python3 -c "$newest_call" "$work/newest_call"
cat >"$work/units/kvcachefs.service.d/test.conf" <<EOF
[Service]
ExecStartPre=python3 -c '$newest_call' $work/newest_call_there
WatchdogSec=2
RestartSec=100ms
ExecStart=
ExecStart=/usr/sbin/kvcachefsd --config $work/kvcachefs.toml $mount
EOF
printf '[Service]\nEnvironment=LISTEN=127.0.0.1:%s\n' $metrics_port >"$work/units/kvcachefs-metrics.service.d/test.conf"
truncate --size 256M "$work/disk"
loops+=("$(losetup --find --show "$work/disk")")
# The file of the other pool is on a file system that is mounted when $work/come is there.
truncate --size 512M "$work/late.disk"
mkfs.ext4 -q "$work/late.disk"
added=$work/added
mkdir "$added" "$work/joined"
truncate --size 256M "$work/added.disk"
mkfs.ext4 -q "$work/added.disk"
cat >"$work/fstab" <<EOF
$work/late.disk  ${late// /\\040}  ext4  loop,nofail,x-systemd.requires=late.service  0  0
$work/added.disk  $added  ext4  loop,noauto  0  0
EOF
cat >"$work/units/late.service" <<EOF
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'until [ -e $work/come ]; do sleep 0.1; done'
EOF
cat >"$work/kvcachefs.toml" <<EOF
state_dir = "$work/state"
[pools.p]
size = "64M"
spill = "$late/p.spill"
spill_size = "256M"
[pools.device]
size = "64M"
spill = "$work/device"
catalog = "$work/device.catalog"
EOF

# A host may have a second kvcachefs, which is not the service's.
mkdir "$work/neighbour"
"$programs/kvcachefsd" --pool p:size=64M -o "runtime_dir=$work/run,no_supervisor" "$work/neighbour" 2>"$work/neighbour.log" &
started+=($!)
until_true 20 test -e "$work/neighbour/.kvcachefs/version" || { cat "$work/neighbour.log" >&2; exit 1; }

own_systemd

stat_value() { ns sed -n "s/^$1 //p" "$mount/.kvcachefs/stats"; }
pool_stat() { ns sed -n "s/^$2 //p" "$mount/$1/.pool/stats"; }
tool() { ns "$work/bin/kvcachefs" --mount "$mount" "$@"; }
as_user() { ns setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
attributes() { ns stat --format '%a %u:%g' "$mount/$1"; }
# entry POOL: whether its entry is as it was stored.
entry_is_whole() { equal "$(ns sha256sum <"$work/entry" | cut -c1-64)" "$(ns sha256sum "$mount/$1/entry" | cut -c1-64)"; }
cold_entry_is_whole() {
  tool evict "$1" --percent 100 >/dev/null && [ "$(pool_stat "$1" cold_entries)" != 0 ] && entry_is_whole "$1"
}
all_is_there() {
  check "$1 the entry is there" entry_is_whole p
  check "$1 the entry comes from the file" cold_entry_is_whole p
  check "$1 the entry comes from the device" cold_entry_is_whole device
}
scrub() { tool scrub "$1" >/dev/null; }
serves_again() { until_true 20 ns test -e "$mount/.kvcachefs/stats"; }
active() { [ "$(property ActiveState "${1:-kvcachefs}")" = active ]; }
restarted() { [ "$(property NRestarts)" = "$1" ] && active; }

valid() {
  local said
  said=$(ns env "SYSTEMD_UNIT_PATH=$work/units:$work/mounts" \
    systemd-analyze verify --man=no "$work"/units/kvcachefs{,-metrics}.service "$work"/units/kvcachefs.{target,slice} 2>&1)
  equal "$said" ''
}
check 'systemd has nothing to say of the units' valid

# A file system that is mounted late is waited for, and a device that appears late is tried for.
late_unit=$(systemd-escape --path --suffix=mount "$late")
on_its_way() { [ "$(property ActiveState late)" = activating ]; }
failed_often() { [ "$(property NRestarts)" -gt 6 ]; }  # where systemd is not told otherwise, it starts nothing more than five times
began_after_its_disk() {
  local disk service
  disk=$(property ActiveEnterTimestampMonotonic "$late_unit")
  service=$(property ExecMainStartTimestampMonotonic)
  [ "$disk" -gt 0 ] && [ "$service" -gt "$disk" ] || { echo "its disk at $disk, itself at $service" >&2; return 1; }
}
check 'it is to start' control start --no-block kvcachefs
check 'its file system is on its way' until_true 10 on_its_way
check 'it waits' equal "$(property ActiveState) $(property ExecMainStartTimestampMonotonic)" 'inactive 0'
touch "$work/come"
check 'its file system is mounted' until_true 20 active "$late_unit"
check 'without its device it does not serve' until_true 60 failed_often
check 'it began after its file system' until_true 20 began_after_its_disk  # its time is 0 while it is tried again
ln -s "${loops[0]}" "$work/device"
check 'with the device it serves' until_true 20 active
check 'with its file where it is to be' equal "$(ns stat --format %m "$late/p.spill")" "$late"
check 'it ends' control stop kvcachefs

check 'it starts' control start kvcachefs
check 'ready means that it serves' ns test -e "$mount/.kvcachefs/stats"
status_value() { ns sed -n "s/^$1:\t*//p" "/proc/$(property MainPID)/status"; }
check 'within its system calls' equal "$(status_value Seccomp)" 2
check 'among which are those newer than systemd' cmp "$work/newest_call" "$work/newest_call_there"
check 'and capabilities' equal "$(status_value CapBnd)" "$(capabilities)"
check 'the kernel moves the bytes' equal "$(stat_value io_mode)" passthrough
check 'what it mounts is seen by the host' ns sh -c "findmnt --types fuse.kvcachefs $mount >/dev/null"
head -c 8M /dev/urandom >"$work/entry"
for pool in p device; do
  ns cp "$work/entry" "$mount/$pool/entry"
  check 'an entry is durable' ns sync "$mount/$pool/entry"
done
check 'the descriptors are kept' until_true 10 test "$(property NFileDescriptorStore)" = 3

# The calls of clients.
check 'a user stores an entry' as_user sh -c "echo bytes >$mount/p/users && chmod 4710 $mount/p/users"
check 'with the bits that he gave it' equal "$(attributes p/users)" '4710 1234:1234'
check 'an owner is changed' ns chown 1235:1236 "$mount/p/users"
check 'to that' equal "$(attributes p/users)" '710 1235:1236'
check 'root sets bits' ns chmod 6755 "$mount/p/users"
check 'as they are' equal "$(attributes p/users)" '6755 1235:1236'
check 'a directory keeps its group' ns mkdir --mode 2775 "$mount/p/group"
check 'by its bit' equal "$(attributes p/group)" '2775 0:0'
check 'a user does not write to it' ns sh -c "chmod 0755 $mount/p/group; ! setpriv --reuid 1234 --clear-groups touch $mount/p/group/file 2>/dev/null"
check 'a user has an entry' as_user cp "$work/entry" "$mount/p/large"
check 'which is evicted' ns sh -c "setpriv --reuid 1234 --clear-groups sync $mount/p/large && $work/bin/kvcachefs --mount $mount evict p --percent 100 >/dev/null"
check 'to the disk' equal "$(ns getfattr --only-values -n user.kvcachefs.tier "$mount/p/large" 2>/dev/null)" cold
check 'and comes back' as_user cmp "$work/entry" "$mount/p/large"
check 'attributes are kept' ns setfattr -n user.name -v value "$mount/p/users"
check 'entries are pinned' tool pin "$mount/p/users"
check 'a pipe is made' ns mkfifo "$mount/p/pipe"
check 'no device is' ns sh -c "! mknod $mount/p/null c 1 3 2>/dev/null"

# The orders of administrators.
check 'a pool is made' tool create made --size 64M --spill "$work/made.spill" --spill-size 128M
check 'with its file' test -s "$work/made.spill"
check 'one without a disk' tool create plain --size 32M
check 'is given one' tool set plain "spill=$work/plain.spill" spill_size=64M
check 'is resized' tool set plain size=48M
check 'has what is stored' ns sh -c "cp $work/entry $mount/plain/entry && sync $mount/plain/entry"
check 'and evicted' cold_entry_is_whole plain
check 'is scrubbed' scrub plain
check 'is deleted' tool delete plain --force
check 'by no user' as_user sh -c "! mkdir $mount/users 2>/dev/null"

# The unit of the metrics has a /tmp of its own, so the mount has to be elsewhere, too. The neighbour's is a second one.
scrape() (
  exec 6<>"/dev/tcp/127.0.0.1/$metrics_port" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&6 && cat <&6
)
answers() { grep -qE "$1" <<<"$(scrape 2>/dev/null)"; }
no_right() { grep -qx 'CapBnd:.0*' <(ns cat "/proc/$(property MainPID kvcachefs-metrics)/status"); }
check 'the metrics start' control start kvcachefs-metrics
check 'and have to be told which mount is meant' until_true 10 answers '^HTTP/1\.[01] 503'
printf '[Service]\nEnvironment="OPTIONS=--mount /run/kv"\n' >"$work/units/kvcachefs-metrics.service.d/which.conf"
check 'in a drop-in' control daemon-reload
check 'told of one that is not there yet' control restart kvcachefs-metrics
check 'they wait for it' until_true 10 answers '^HTTP/1\.[01] 503'
check 'it comes' ns sh -c "mkdir /run/kv && mount --bind $mount /run/kv"
check 'they are served' until_true 10 answers '^HTTP/1\.[01] 200'
check 'with its pools' answers '^kvcachefs_.*\{pool="device"'
check 'with no rights' no_right
check 'they end' control stop kvcachefs-metrics
check 'well' equal "$(property Result kvcachefs-metrics)" success
ns umount /run/kv

check 'it is reloaded' control reload kvcachefs
check 'by an upgrade' equal "$(stat_value generation)" 1
all_is_there 'after a reload'

ns bash -c "kill -KILL $(stat_value pid)"
all_is_there 'after the death of who serves'
check 'of which systemd has not heard' equal "$(property NRestarts)" 0

ns bash -c "kill -KILL $(property MainPID)"
check 'the supervisor is started again' until_true 20 restarted 1
check 'and serves' serves_again
all_is_there 'after the death of the supervisor'
check 'it is reloaded again' control reload kvcachefs

ns bash -c "kill -STOP $(property MainPID)"
check 'one that hangs is started again' until_true 30 restarted 2
check 'and serves' serves_again
all_is_there 'after its hang'

# A program that says that it can take over, and ends when it is to.
ns sh -c 'cd /usr/sbin && cp kvcachefsd right && printf "#!/bin/sh\ncase \$1 in --can-succeed*) exit 0 ;; esac\nexit 7\n" >wrong &&
  chmod 755 wrong && mv wrong kvcachefsd'
check 'a program that ends is no upgrade' ns sh -c '! systemctl reload kvcachefs 2>/dev/null'
check 'it is started again and again' until_true 20 eval '[ "$(property NRestarts)" -ge 4 ]'
ns sh -c 'cd /usr/sbin && mv right kvcachefsd'
check 'until one serves' serves_again
all_is_there 'after that'

check 'it ends' control stop kvcachefs
check 'well' equal "$(property Result)" success
check 'with the mount' ns bash -c "! mountpoint -q $mount"
check 'whose directory takes no writes' ns bash -c "! mkdir $mount/p 2>/dev/null"
check 'and keeps nothing' equal "$(property NFileDescriptorStore)" 0
check 'it starts again' control start kvcachefs
all_is_there 'after the end'
check 'and ends again' control stop kvcachefs

# A pool that joins what the service serves, with a disk that no configuration names.
added_unit=$(systemd-escape --path --suffix=mount "$added")
inactive() { [ "$(property ActiveState "$1")" = inactive ]; }
disk_units() { control list-units --all --plain --no-legend 'kvcachefs-disks-*' | sed 's/ .*//'; }
joins() { ns mount -t kvcachefs joined "$work/joined" -o "mountpoint=$mount,size=64M,spill=$added/spill,spill_size=128M"; }
check 'it starts' control start kvcachefs
check 'a pool joins it' joins
check 'its disk is mounted' active "$added_unit"
check 'by a unit' active "$(disk_units)"
ns cp "$work/entry" "$mount/joined/entry"
ns bash -c "kill -KILL $(property MainPID)"
check 'the supervisor is started again' until_true 20 eval '[ "$(property NRestarts)" -ge 1 ] && active'
check 'and serves' serves_again
check 'the pool, too' entry_is_whole joined
check 'whose unit is there' active "$(disk_units)"
check 'the disk is unmounted' control stop "$added_unit"
check 'after the end of the service' inactive kvcachefs
check 'with nothing to unmount by force' inactive "$added_unit"
check 'and without the unit' equal "$(disk_units)" ''
check 'it starts again' control start kvcachefs
check 'the pool joins it again' joins
check 'it is restarted' control restart kvcachefs
check 'and serves' serves_again
check 'the tool ends it' ns "$work/bin/kvcachefs" --mount "$mount" stop
check 'and not the service manager' until_true 20 inactive kvcachefs
check 'it starts again' control start kvcachefs
check 'the pool joins it again' joins
check 'it ends' control stop kvcachefs
check 'with the unit' equal "$(disk_units)" ''
check 'but not the disk' active "$added_unit"

cp "$work/kvcachefs.toml" "$work/right"
echo 'wrong = 1' >>"$work/kvcachefs.toml"
check 'with a wrong configuration it does not start' ns sh -c '! systemctl start kvcachefs 2>/dev/null'
check 'nor is it tried again' equal "$(property ActiveState) $(property NRestarts) $(property ExecMainStatus)" 'failed 0 2'
mv "$work/right" "$work/kvcachefs.toml"

if [ "$(cat /sys/module/fuse/parameters/enable_uring 2>/dev/null)" = Y ]; then
  # The pools that were created before have disks and are kept, so this configuration keeps no state.
  printf 'io_uring = true\nstate_dir = "none"\n[pools.p]\nsize = "64M"\n' >"$work/kvcachefs.toml"
  check 'over io_uring it starts' control start kvcachefs
  check 'with it' equal "$(stat_value transport)" io_uring
  check 'and passthrough' equal "$(stat_value io_mode)" passthrough
  ns cp "$work/entry" "$mount/p/entry"
  check 'an entry is kept' entry_is_whole p
  check 'it is not reloaded' ns sh -c '! systemctl reload kvcachefs 2>/dev/null'
  check 'and goes on' entry_is_whole p
  check 'it ends' control stop kvcachefs
  check 'well' equal "$(property Result)" success
fi
echo "systemd.sh: $checks checks passed"
