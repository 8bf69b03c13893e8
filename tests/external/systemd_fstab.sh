#!/bin/bash
# Pools of /etc/fstab under a systemd of its own (own_systemd.sh), by mount units: where their daemon lives, that it outlives
# the mount unit that started it, that the mount table and those who look for what keeps a mount busy know it, and its end.
#
# The files that are installed beside the unit are checked, too.
#
# usage: tests/external/systemd_fstab.sh [DIRECTORY-OF-PROGRAMS]; as root; needs systemd, whichever process is PID 1 outside.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
programs=$(cd "${1:-$root/build/dev/bin}" && pwd)
[ -x /lib/systemd/systemd ] || { echo "systemd_fstab.sh: no /lib/systemd/systemd here" >&2; exit 1; }
. "$root/tests/external/own_systemd.sh"

# A disk that has to be there first, at a place that systemd escapes, and two pools.
data=$work/a\ 100%\ disk
mkdir -p "$data" "$work/a" "$work/b" "$work/root"
truncate --size 256M "$work/disk"
mkfs.ext4 -q "$work/disk"
cat >"$work/fstab" <<EOF
$work/disk  ${data// /\\040}  ext4  loop,nofail  0  0
a  $work/a  kvcachefs  size=64M,spill=${data// /\\040}/a.spill,spill_size=128M,nofail  0  0
b  $work/b  kvcachefs  size=64M,nofail,x-systemd.before=kvcachefs.target  0  0
EOF
cat >"$work/units/engine.service" <<EOF
[Unit]
Wants=kvcachefs.target
After=kvcachefs.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/test -e $work/b/.pool/size
EOF
packaging=$root/packaging/systemd
check 'the group is one' systemd-sysusers --dry-run "$packaging/kvcachefs.sysusers"
check 'the directories are' systemd-tmpfiles --create --root "$work/root" "$packaging/kvcachefs.tmpfiles"
check 'for catalogs, of root alone' equal "$(stat --format %a "$work/root/var/lib/kvcachefs")" 700
own_systemd

# Where root is without CAP_SYS_RESOURCE, as in some containers, nothing gets less than it has.
hard_to_kill=0  # as processes of units have it
if sh -c 'echo -900 >/proc/self/oom_score_adj' 2>/dev/null; then hard_to_kill=-900; fi
unit_of() { systemd-escape --path --suffix=mount "$1"; }
serving_pid() { ns sed -n 's/^pid //p' "/run/kvcachefs/mount/.kvcachefs/stats"; }
supervisor_pid() { ns sed -n 's/^supervisor_pid //p' "/run/kvcachefs/mount/.kvcachefs/stats"; }
in_proc() { ns cat "/proc/$1/$2"; }
# systemd's own hierarchy: the only one, or that of its name beside those of version 1.
scope_of() { ns sed -n 's/^[0-9]*:\(name=systemd\)\?:\(.*\)/\2/p' "/proc/$1/cgroup" | head -1; }
in_its_slice() { [[ "$(scope_of "$1")" == /kvcachefs.slice/kvcachefs-mount-*.scope ]] || { in_proc "$1" cgroup >&2; return 1; }; }
active() { [ "$(property ActiveState "$1")" = active ]; }
inactive() { [ "$(property ActiveState "$1")" = inactive ]; }

mv "$work/disk" "$work/away"
check 'without its disk the first is not mounted' ns bash -c "! systemctl start '$(unit_of "$work/a")' 2>/dev/null"
check 'and leaves nothing where the disk would be' equal "$(ls "$data")" ''
mv "$work/away" "$work/disk"
control reset-failed
check 'the first is mounted' control start "$(unit_of "$work/a")"
check 'its disk before it' active "$(unit_of "$data")"
check 'the second is mounted' control start --no-block "$(unit_of "$work/b")"
check 'before what uses it' control start engine
supervisor=$(supervisor_pid)
serving=$(serving_pid)
scope=$(basename "$(scope_of "$supervisor")")
check 'the daemon is in a slice of its own' in_its_slice "$supervisor"
check 'and the last to be killed for memory' equal "$(in_proc "$supervisor" oom_score_adj)" "$hard_to_kill"
check 'so is who serves' in_its_slice "$serving"
check 'and the last but one' equal "$(in_proc "$serving" oom_score_adj)" "$((hard_to_kill + 1))"
head -c 4M /dev/urandom >"$work/entry"
ns cp "$work/entry" "$work/a/entry"
ns cp "$work/entry" "$work/b/entry"

# Others' mounts of the host are in the namespace, too.
check 'the mount table has them' equal "$(ns findmnt --types fuse.kvcachefs --noheadings --list --output TARGET |
  grep -e "^$work/" -e '^/run/kvcachefs/' | sort | tr '\n' ' ')" \
  "/run/kvcachefs/mount $work/a $work/b "

ns bash -c "kill -KILL $serving"
check 'after a takeover the entry is there' ns cmp "$work/entry" "$work/b/entry"
check 'by a process in the same place' in_its_slice "$(serving_pid)"
check 'as hard to kill' equal "$(in_proc "$(serving_pid)" oom_score_adj)" "$((hard_to_kill + 1))"
check 'it is upgraded' ns "$work/bin/kvcachefs" --mount /run/kvcachefs/mount upgrade
check 'and is the same process' equal "$(supervisor_pid)" "$supervisor"
check 'in the same place' in_its_slice "$supervisor"

# The process that keeps a mount busy is named.
ns bash -c "exec -a holder sleep 600 <$work/b/entry" &
started+=($!)
holder_is_there() { holder=$(ns pgrep -f '^holder 600'); }
check 'a process holds an entry' until_true 10 holder_is_there
check 'so the pool is not unmounted' ns bash -c "! umount $work/b 2>$work/busy"
check 'because it is busy' grep -q busy "$work/busy"
check 'fuser says by whom' ns bash -c "fuser --mount $work/b/entry 2>/dev/null | grep -qw $holder"
check 'lsof does' ns bash -c "lsof -t $work/b | grep -qx $holder"
ns kill "$holder"
check 'nobody holds it any more' until_true 10 ns bash -c "! lsof -t $work/b"

check 'the first is unmounted' control stop "$(unit_of "$work/a")"
check 'which leaves a directory that takes no writes' ns bash -c "! touch $work/a/below 2>/dev/null"
check 'without the second' ns cmp "$work/entry" "$work/b/entry"
check 'and without the daemon' active "$scope"
check 'the first is mounted again' control start "$(unit_of "$work/a")"
check 'with what it had' ns cmp "$work/entry" "$work/a/entry"
for at in a b; do check 'it is unmounted' control stop "$(unit_of "$work/$at")"; done
check 'the mount of all is' ns umount /run/kvcachefs/mount
check 'the daemon ends with it' until_true 20 inactive "$scope"

# A pool whose disk the daemon learns of when it serves already.
new_scope() { scope=$(basename "$(scope_of "$(supervisor_pid)")"); }
disk_units() { control list-units --all --plain --no-legend 'kvcachefs-disks-*' | sed 's/ .*//'; }
no_disk_units() { [ -z "$(disk_units)" ]; }
check 'the disk is unmounted without a daemon' control stop "$(unit_of "$data")"
check 'the second is mounted alone' control start "$(unit_of "$work/b")"
new_scope
check 'in a scope that needs no disk' equal "$(property RequiresMountsFor "$scope")" ''
mv "$work/disk" "$work/away"
check 'without its disk the first is not mounted' ns bash -c "! systemctl start '$(unit_of "$work/a")' 2>/dev/null"
check 'and leaves nothing where the disk would be' equal "$(ls "$data")" ''
check 'nor a unit' equal "$(disk_units)" ''
check 'and the daemon goes on' active "$scope"
mv "$work/away" "$work/disk"
control reset-failed
check 'the first joins it' control start "$(unit_of "$work/a")"
check 'in the same scope' equal "$(basename "$(scope_of "$(supervisor_pid)")")" "$scope"
check 'with what the disk has' ns cmp "$work/entry" "$work/a/entry"
check 'its disk has a unit' active "$(disk_units)"
check 'it is unmounted' control stop "$(unit_of "$work/a")"
check 'without the daemon' active "$scope"
check 'and mounted again' control start "$(unit_of "$work/a")"
check 'with no other unit' equal "$(disk_units | wc -l)" 1
check 'the disk is unmounted' control stop "$(unit_of "$data")"
check 'after the daemon has ended' inactive "$scope"
check 'with nothing to unmount by force' inactive "$(unit_of "$data")"
check 'its unit goes' until_true 20 no_disk_units
check 'the second is mounted alone again' control start "$(unit_of "$work/b")"
check 'the first joins it again' control start "$(unit_of "$work/a")"
new_scope
check 'its disk has a unit again' active "$(disk_units)"
for at in a b; do check 'it is unmounted' control stop "$(unit_of "$work/$at")"; done
check 'the mount of all is' ns umount /run/kvcachefs/mount
check 'the daemon ends with it' until_true 20 inactive "$scope"
check 'and the unit of the disk' until_true 20 no_disk_units
check 'which stays mounted' active "$(unit_of "$data")"
# A pool that is refused leaves the daemon and the disk apart.
check 'the second is mounted alone again' control start "$(unit_of "$work/b")"
new_scope
check 'a pool is refused' ns bash -c "! mount -t kvcachefs wrong '$work/a' -o 'size=64M,spill=$data,spill_size=64M' 2>/dev/null"
check 'and leaves no unit' no_disk_units
check 'nor the daemon without the disk' control stop "$(unit_of "$data")"
check 'which goes on' active "$scope"
check 'it is unmounted' control stop "$(unit_of "$work/b")"
check 'the mount of all is' ns umount /run/kvcachefs/mount
check 'the daemon ends with it' until_true 20 inactive "$scope"

check 'both are mounted again' control start "$(unit_of "$work/a")" "$(unit_of "$work/b")"
check 'with what the disk has' ns cmp "$work/entry" "$work/a/entry"
new_scope
# As at the end of the machine: the disk goes after the daemon, which writes to it.
check 'the disk is unmounted' control stop "$(unit_of "$data")"
check 'after the daemon has ended' inactive "$scope"
check 'with nothing to unmount by force' inactive "$(unit_of "$data")"
echo "systemd_fstab.sh: $checks checks passed"
