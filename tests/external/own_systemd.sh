# A systemd of its own, PID 1 of a PID namespace, for the tests that source this file. They have $root and $programs,
# the directory of programs; own_systemd makes $work, a directory that goes with the test, with $work/units for units,
# $work/fstab and, if the test makes it, $work/kvcachefs.toml. In the namespace /usr/sbin has the programs of the build and nothing else.

work=$(mktemp -d /tmp/kv-systemd-XXXXXX)
chmod 755 "$work"  # for users
init=
started=()  # processes outside of it
checks=0

cleanup() {
  if [ -n "$init" ]; then kill -KILL "$init" 2>/dev/null || true; fi
  if [ ${#started[@]} -gt 0 ]; then kill -TERM "${started[@]}" 2>/dev/null || true; fi
  wait 2>/dev/null || true
  for device in "${loops[@]}"; do losetup -d "$device" || true; done
  chattr -R -f -i "$work" || true  # the mount points of pools
  rm -rf --one-file-system "$work"
}
loops=()
trap cleanup EXIT
trap 'exit 1' INT TERM

mkdir -p "$work/units" "$work/bin"
cp "$programs/kvcachefsd" "$programs/kvcachefs" "$programs/mount.kvcachefs" "$work/bin"
for target in default sysinit basic shutdown local-fs local-fs-pre umount; do
  printf '[Unit]\nDescription=nothing but what is started here\n' >"$work/units/$target.target"
done
touch "$work/fstab"
for unit in kvcachefs kvcachefs-metrics; do
  sed "s|/usr/bin/kvcachefs|/usr/sbin/kvcachefs|; s|/etc/kvcachefs.toml|$work/kvcachefs.toml|" \
    "$root/packaging/systemd/$unit.service" >"$work/units/$unit.service"
done
cp "$root"/packaging/systemd/*.{target,slice} "$work/units"

# until_true SECONDS COMMAND...: whether it comes true.
until_true() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $deadline ]; then return 1; fi
    sleep 0.1
  done
}

find_init() { init=$(pgrep -P "$unshare_pid") && [ "$(cat "/proc/$init/comm")" = systemd ]; }
ns() { timeout 100 nsenter --target "$init" --mount --pid --cgroup --ipc "$@"; }
control() { ns systemctl "$@"; }
property() { control show --property "$1" --value "${2:-kvcachefs}"; }

# own_systemd: it starts, with the units that are there and what the generators make of $work/fstab and $work/kvcachefs.toml.
own_systemd() {
  mkdir "$work/mounts"
  SYSTEMD_FSTAB=$work/fstab /lib/systemd/system-generators/systemd-fstab-generator "$work/mounts" "$work/mounts" "$work/mounts"
  KVCACHEFS_CONFIG=$work/kvcachefs.toml "$root/packaging/systemd/kvcachefs-generator" "$work/mounts"
  unshare --mount --pid --fork --cgroup --uts --ipc bash -c '
    set -e
    mount --make-rprivate /
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /usr/sbin
    cp "$0"/bin/* /usr/sbin
    mount --bind "$0/fstab" /etc/fstab
    mkdir -p /run/systemd/system
    mount --make-rshared /
    export container=test SYSTEMD_UNIT_PATH="$0/units:$0/mounts"
    exec /lib/systemd/systemd --system --log-target=console --show-status=0' "$work" >"$work/log" 2>&1 &
  unshare_pid=$!
  until_true 20 find_init || { cat "$work/log" >&2; exit 1; }
  check 'systemd runs' until_true 20 control is-system-running
}

# check WHAT COMMAND...
check() {
  local what=$1
  shift
  checks=$((checks + 1))
  if "$@"; then return 0; fi
  echo "$(basename "$0"): $what: not so" >&2
  control list-units --no-pager --all --failed >&2 || true
  control status --no-pager kvcachefs "*.mount" "*.scope" >&2 || true
  cat "$work/log" >&2
  exit 1
}
equal() { [ "$1" = "$2" ] || { echo "'$1', not '$2'" >&2; return 1; }; }
