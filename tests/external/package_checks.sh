#!/bin/bash
# What tests/external/package.sh checks in a fresh root, whose process 1 this is: first with no service manager, then, unless the
# argument is without-service-manager, under a systemd of its own. /packages/old and /packages/new have two builds, /data is on a disk.
# Each check prints a line; the first that fails ends it.
set -euo pipefail

readonly old=(/packages/old/kvcachefs_*.deb) new=(/packages/new/kvcachefs_*.deb)
readonly log=/tmp/last.log
readonly drop_in=/etc/systemd/system/kvcachefs-metrics.service.d metrics_port=19412
checks=0

# check WHAT COMMAND...
check() {
  local what=$1
  shift
  checks=$((checks + 1))
  if "$@" >"$log.check" 2>&1; then echo "ok   $what"; return 0; fi
  echo "FAIL $what"
  echo "--- $*"
  cat "$log.check"
  echo "--- the last installation:"
  tail -n 40 "$log"
  journalctl --no-pager -n 30 -u kvcachefs 2>/dev/null || true
  exit 1
}
equal() { [ "$1" = "$2" ] || { echo "'$1', not '$2'"; return 1; }; }
said() { grep -qF -- "$1" "$log" || { echo "no word of: $1"; return 1; }; }
silent() { ! grep -F -- "$1" "$log"; }
fails() { ! "$@"; }
until_true() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || { "$@"; return 1; }
    sleep 0.1
  done
}
apt() { apt-get -q -y --allow-downgrades "$@" >"$log" 2>&1 || { cat "$log"; return 1; }; }
installed() { dpkg-query -W -f '${db:Status-Abbrev}${Version}' kvcachefs; }
version_of() { dpkg-deb -f "$1" Version; }
stat_of() { sed -n "s/^$2 //p" "$1/.kvcachefs/stats"; }
same() { equal "$(sha256sum <"$1")" "$(sha256sum <"$2")"; }
# no_process PATTERN: of a command line.
no_process() {
  local line found=0
  for line in /proc/[0-9]*/cmdline; do
    if tr '\0' ' ' 2>/dev/null <"$line" | grep -E "$1"; then found=1; fi
  done
  return $found
}
link_to() { [ "$(readlink "/proc/$1/exe")" = "$2" ] || { readlink "/proc/$1/exe"; return 1; }; }

without_service_manager() {
  apt-get update -q >"$log" 2>&1 || { cat "$log"; exit 1; }
  check 'apt installs the package on a fresh root' apt install --no-install-recommends "${old[0]}"
  check 'and tells what --check-system found' said 'this machine can serve'
  check 'it is installed' equal "$(installed)" "ii $(version_of "${old[0]}")"
  check 'kvcachefs' equal "$(stat -c '%a %U:%G' /usr/bin/kvcachefs)" '755 root:root'
  check 'kvcachefsd' equal "$(stat -c '%a %U:%G' /usr/sbin/kvcachefsd)" '755 root:root'
  check 'the mount helper, where mount looks for it' equal "$(stat -c '%a %U:%G' /sbin/mount.kvcachefs)" '755 root:root'
  check 'and for a remount without a line of fstab' equal "$(readlink /sbin/mount.fuse.kvcachefs)" mount.kvcachefs
  check 'the configuration' equal "$(stat -c '%a %U:%G' /etc/kvcachefs.toml)" '644 root:root'
  check 'the unit' grep -q '^ExecStart=' "$(dpkg -L kvcachefs | grep 'systemd/system/kvcachefs.service$')"
  check 'its generator' equal "$(stat -c '%a %U:%G' /usr/lib/systemd/system-generators/kvcachefs-generator)" '755 root:root'
  for page in man1/kvcachefs.1 man5/kvcachefs.toml.5 man7/kvcachefs.7 man8/kvcachefsd.8 man8/mount.kvcachefs.8; do
    check "the manual $page" test -n "$(dpkg -L kvcachefs | grep "/$page.gz")"
  done
  for document in CONTRIBUTING.md connectors.md bench/README.md examples/connector.py examples/connector.cc; do
    check "$document, which the README names" grep -qE "/doc/kvcachefs/$document(.gz)?\$" <(dpkg -L kvcachefs)
  done
  check 'the group of those who may steer pools' getent group kvcachefs
  check 'no file lies outside /usr merged' fails grep -E '^/(bin|sbin|lib64)/' <(dpkg -L kvcachefs)
  check 'all files are as they were packed' dpkg --verify kvcachefs
  check 'kvcachefsd starts' kvcachefsd --version
  check 'no libfuse is needed' fails sh -c 'ldd /usr/sbin/kvcachefsd | grep fuse'

  check 'what the autopkgtest needs' apt install --no-install-recommends attr
  check 'the autopkgtest' /autopkgtest/mount-store-upgrade

  mkdir -p /mnt/llama
  echo 'llama /mnt/llama kvcachefs size=64M,nofail 0 0' >>/etc/fstab
  check 'a line of fstab is mounted' mount -a
  head -c 4M /dev/urandom >/tmp/entry
  check 'an entry is stored' cp /tmp/entry /mnt/llama/entry
  check 'and read' same /tmp/entry /mnt/llama/entry
  check 'apt installs it again' apt install --reinstall "${old[0]}"
  check 'and the mount goes on with another process' equal "$(stat_of /run/kvcachefs/mount generation)" 1
  check 'with the entry' same /tmp/entry /mnt/llama/entry
  echo 'qwen /mnt/qwen kvcachefs size=64M 0 0' >>/etc/fstab
  check 'a removal with a mount that no process uses' apt remove kvcachefs
  check 'names the line of fstab that stops the next boot' said 'qwen /mnt/qwen kvcachefs size=64M 0 0  <- stops it'
  check 'and the one that does not' said 'llama /mnt/llama kvcachefs size=64M,nofail 0 0'
  check 'without a word' silent 'nofail 0 0  <- stops it'
  sed -i '/^qwen/d' /etc/fstab
  check 'unmounts it' fails mountpoint -q /mnt/llama
  check 'names the mount point that takes no writes' said '/mnt/llama takes no writes and stays'
  check 'so that a server does not fill the disk below' fails touch /mnt/llama/below
  check 'and ends its daemon' no_process '^[^ ]*kvcachefsd'
  check 'the configuration stays' test -e /etc/kvcachefs.toml
  purge_with_others_files
  check 'leaves nothing' nothing_left
}

catalog() { mkdir -p "$1" && touch "$1/data.mdb" "$1/lock"; }

# What administrators may have beside what daemons keep under /var/lib/kvcachefs.
purge_with_others_files() {
  local state=/var/lib/kvcachefs path
  local own=("$state/gone" "$state/mnt-kv.settings" "$state/mnt-kv.settings.new" "$state/cut.catalog")
  local others=("$state/q.spill" "$state/q.spill.catalog/data.mdb" "$state/notes/data.mdb" "$state/notes/text" "$state/disk/data.mdb"
    "$state/linked/data.mdb" "$state/empty" "$state/used/data.mdb")
  mkdir -p "$state/disk" "$state/empty"
  mount -t tmpfs disk "$state/disk"
  catalog /tmp/linked
  ln -s /tmp/linked "$state/linked"
  for path in gone cut.catalog q.spill.catalog notes disk used; do catalog "$state/$path"; done
  touch "$state/q.spill" "$state/notes/text" "$state/mnt-kv.settings" "$state/mnt-kv.settings.new"
  exec 5<"$state/used/lock"
  flock 5
  check 'a purge, with files of others beside those of the daemon' apt purge kvcachefs
  exec 5<&-
  for path in "${own[@]}"; do check "$path goes" fails test -e "$path"; done
  for path in "${others[@]}"; do check "$path stays" test -e "$path"; done
  for path in q.spill q.spill.catalog notes disk linked empty used; do check "$path is named" said "$state/$path stays"; done
  check 'and why one is in use' said "$state/used is in use by a kvcachefsd that still runs"
  umount "$state/disk"
  rm -r "$state"
}

nothing_left() {
  local left
  left=$(find / -xdev \( -path /proc -o -path /data -o -path /checks -o -path /packages -o -path /autopkgtest -o -path /tmp -o -path /var/cache/apt \) -prune -o \
    -iname '*kvcachefs*' -print; find /run -iname '*kvcachefs*')
  equal "$left" ''
}

# A client of a directory: stores entries, reads each again and one that was open before. Ends at its first failure, with a line
# in its log.
load() {
  local directory=$1 report=$2 i=0 name
  exec 8<"$directory/kept"
  while [ ! -e /tmp/enough ]; do
    i=$((i + 1))
    name=$directory/load.$((i % 8))
    cp /tmp/block "$name.new" && mv "$name.new" "$name" || { echo "store $i" >>"$report.failed"; return; }
    cmp -s /tmp/block "$name" || { echo "read $i" >>"$report.failed"; return; }
    cmp -s /tmp/kept /proc/self/fd/8 || { echo "open file $i" >>"$report.failed"; return; }
    echo $i >"$report"
  done
}
# goes_on REPORT: the client makes progress from now on. A round takes half a second where the processors are busy.
goes_on() {
  local before
  before=$(cat "$1")
  until_true 120 eval "[ \"\$(cat $1)\" -gt $((before + 20)) ]" || { tail "$1" "$1".failed; return 1; }
}
no_failure() { ! cat /tmp/load.*.failed 2>/dev/null; }

# Both mounts serve with clients at them, as the program that is installed: the service's, and that of fstab.
served_on() {
  local generation=$1 pid=$2 mount
  for mount in /mnt/kv /run/kvcachefs/mount; do
    check "$mount: another process serves" equal "$(stat_of $mount generation)" "$generation"
    check "$mount: as the program that is installed" link_to "$(stat_of $mount pid)" /usr/sbin/kvcachefsd
  done
  check 'the service was not stopped' equal "$(systemctl show -P MainPID kvcachefs) $(systemctl show -P NRestarts kvcachefs)" "$pid 0"
  check 'the client of the service goes on' goes_on /tmp/load.service
  check 'the client of the mount of fstab goes on' goes_on /tmp/load.fstab
  check 'no call of theirs has failed' no_failure
}

configure() {
  mkdir -p /mnt/kv
  cat >/etc/kvcachefs.toml <<'TEXT'
mountpoint = "/mnt/kv"
[pools.p]
size = "64M"
spill = "/data/p.spill"
spill_size = "256M"
[pools.q]
size = "64M"
spill = "/data/q.spill"
spill_size = "256M"
catalog = "/var/lib/kvcachefs/q"
TEXT
}

# All units that the package has, beside the service. Where several are mounted the metrics are told which.
start_other_units() {
  mkdir -p "$drop_in"
  printf '[Service]\nEnvironment="LISTEN=127.0.0.1:%s" "OPTIONS=--mount /mnt/kv"\n' $metrics_port >"$drop_in/mount.conf"
  systemctl daemon-reload
  systemctl enable --now kvcachefs-metrics kvcachefs.target
}
active() { equal "$(systemctl is-active kvcachefs kvcachefs-metrics kvcachefs.target | sort | uniq -c | tr -s ' ')" " 3 $1"; }
metrics_served() {
  exec 6<>/dev/tcp/127.0.0.1/$metrics_port
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&6
  grep '^kvcachefs_.*{pool="p"' <&6
}

# A version of the package whose disk formats this one does not know.
make_package_of_later_format() {
  dpkg-deb -R "${new[0]}" /tmp/later
  sed -i 's/^Version: .*/Version: 0.1.0-9/' /tmp/later/DEBIAN/control
  sed -i 's/^catalog .*/catalog 99/' /tmp/later/usr/share/kvcachefs/disk-formats
  (cd /tmp/later && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
  dpkg-deb --root-owner-group -b /tmp/later /tmp/later.deb
}

stopped_has_gone_on() { equal "$(stat_of '/mnt/is stopped' generation)" 1; }

changes_under_systemd() {
  local pid metrics_pid supervisor
  check 'apt installs the package' apt install --no-install-recommends "${old[0]}"
  check 'the service is not enabled' equal "$(systemctl is-enabled kvcachefs || true)" disabled
  check 'nor has it failed' equal "$(systemctl is-active kvcachefs || true)" inactive
  configure
  check 'configured, it is enabled and starts' systemctl enable --now kvcachefs
  check 'after the file systems of its disks' grep -w /data/p.spill <(systemctl show -P RequiresMountsFor kvcachefs)
  check 'the line of fstab is mounted' mount /mnt/llama
  check 'a setting is changed' kvcachefs --mount /mnt/kv set q watermarks=80:90
  check 'the metrics and the target are enabled and start' start_other_units
  check 'the metrics are served' until_true 10 metrics_served
  mkdir -p /mnt/alone
  check 'a daemon without a supervisor beside them' kvcachefsd --daemonize -o no_supervisor --pool a:size=64M /mnt/alone
  mkdir -p '/mnt/is stopped'
  check 'and one whose supervisor will not answer' kvcachefsd --daemonize --pool s:size=64M '/mnt/is stopped'
  supervisor=$(stat_of '/mnt/is stopped' supervisor_pid)
  kill -STOP "$supervisor"
  head -c 1M /dev/urandom >/tmp/block
  head -c 4M /dev/urandom >/tmp/kept
  for directory in /mnt/kv/p /mnt/kv/q /mnt/llama; do cp /tmp/kept $directory/kept; done
  (load /mnt/kv/p /tmp/load.service) &
  (load /mnt/llama /tmp/load.fstab) &
  until_true 10 test -s /tmp/load.service -a -s /tmp/load.fstab
  pid=$(systemctl show -P MainPID kvcachefs)
  metrics_pid=$(systemctl show -P MainPID kvcachefs-metrics)

  check 'an upgrade, with clients at it' apt install "${new[0]}"
  check 'it is installed' equal "$(installed)" "ii $(version_of "${new[0]}")"
  check 'the configuration is as it was' grep -q '^\[pools.q\]' /etc/kvcachefs.toml
  served_on 1 "$pid"
  check 'all units are active' active active
  check 'the metrics are those of the new program' fails equal "$(systemctl show -P MainPID kvcachefs-metrics)" "$metrics_pid"
  check 'and served' until_true 10 metrics_served
  check 'what could not be upgraded is a hint' said '/mnt/alone is served by the program from before, until it is mounted anew'
  check 'what is not known yet is no such hint' said '/mnt/is stopped: not known yet whether it goes on as the new program'
  kill -CONT "$supervisor"
  check 'it goes on as the new program when it comes to it' until_true 20 stopped_has_gone_on
  umount /mnt/alone '/mnt/is stopped'
  check 'their daemons end when they are unmounted' until_true 20 no_process '^[^ ]*kvcachefsd .*/mnt/(alone|is stopped)'

  check 'a downgrade to a version that knows the formats' apt install "${old[0]}"
  check 'is installed' equal "$(installed)" "ii $(version_of "${old[0]}")"
  served_on 2 "$pid"
  check 'with no hint' silent 'the program from before'

  make_package_of_later_format >/dev/null
  check 'an upgrade to a version with a later format' apt install /tmp/later.deb
  served_on 3 "$pid"
  check 'a downgrade from it is refused' fails apt install "${new[0]}"
  check 'with the reason' said 'downgrade refused: version 0.1.0-9 writes format 99 to disk (catalog)'
  check 'the later version is still installed' equal "$(installed)" 'ii 0.1.0-9'
  check 'with all of its files' dpkg --verify kvcachefs
  check 'the client of the service goes on' goes_on /tmp/load.service
  touch /tmp/enough
  wait
}

removal_under_systemd() {
  local path pool
  exec 9</mnt/llama/kept
  check 'a removal, with a mount of fstab in use' apt remove kvcachefs
  check 'says what goes on' said '/run/kvcachefs/mount is in use by process'
  check 'says what stays' said '/etc/kvcachefs.toml'
  check 'the file that is open can be read' cmp /tmp/kept /proc/self/fd/9
  check 'and others' cmp /tmp/block /mnt/llama/load.0
  check 'the service has ended' fails mountpoint -q /mnt/kv
  check 'and the other units' active inactive
  for path in /data/p.spill /data/p.spill.catalog/data.mdb /data/q.spill /var/lib/kvcachefs/q/data.mdb /etc/kvcachefs.toml; do
    check "$path stays" test -e "$path"
  done
  exec 9<&-
  check 'unmounted' umount /mnt/llama /run/kvcachefs/mount
  check 'that daemon ends, too' until_true 20 no_process '^[^ ]*kvcachefsd'

  check 'apt installs the package again' apt install "${new[0]}"
  check 'the service is still enabled' equal "$(systemctl is-enabled kvcachefs || true)" enabled
  check 'and starts, with the others' systemctl start kvcachefs kvcachefs-metrics kvcachefs.target
  check 'what was set is there' grep -q '^watermarks set 80:90$' /mnt/kv/q/.pool/settings
  for pool in p q; do check "what pool $pool had on disk is there" until_true 20 same /tmp/kept /mnt/kv/$pool/kept; done

  rm -r "$drop_in"
  check 'a purge of the package whose units are active' apt purge kvcachefs
  check 'tells what stays' said 'spill files, catalogs beside them'
  check 'leaves nothing of its own' nothing_left
  check 'nor an enabled unit' fails test -e /etc/systemd/system/multi-user.target.wants/kvcachefs.service
  for path in /data/p.spill /data/p.spill.catalog/data.mdb /data/q.spill; do
    check "$path, which has a path of the administrator's, stays" test -e "$path"
  done
}

if [ "${1:-}" = under-systemd ]; then
  changes_under_systemd
  removal_under_systemd
  echo "$checks checks passed under systemd"
  exit 0
fi

without_service_manager
echo "$checks checks passed without a service manager"
[ "${1:-}" != without-service-manager ] || exit 0
apt install --no-install-recommends systemd
printf '[Unit]\nDescription=nothing but what is started here\n' >/etc/systemd/system/checks.target
systemctl set-default checks.target >/dev/null 2>&1
unshare --mount --pid --fork --cgroup --uts --ipc bash -c '
  mount -t proc proc /proc && mkdir -p /run/systemd/system
  # As on a machine: what is unmounted goes from the namespaces of services, too (kvcachefs-metrics has one).
  mount --make-rshared /
  export container=test
  exec /lib/systemd/systemd --system --log-target=console --show-status=0' >/tmp/systemd.log 2>&1 &
unshare_pid=$!
find_init() { init=$(cat "/proc/$unshare_pid/task/$unshare_pid/children") && init=${init% } && [ "$(cat "/proc/$init/comm")" = systemd ]; }
until_true 20 find_init
ns=(nsenter --target "$init" --mount --pid --cgroup --ipc --uts)
until_true 60 "${ns[@]}" systemctl is-active checks.target || { cat /tmp/systemd.log; exit 1; }
"${ns[@]}" bash /checks/package_checks.sh under-systemd
