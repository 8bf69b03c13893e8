# Sourced by the scripts beside it: a fresh mount of the built daemon in a given mode, gone when the script ends.
# Sets $mount_pool, the directory of a pool `p`. Needs root. KVCACHEFSD names the daemon (default: that of
# build/dev); modes `spill` and `spill_daemon_io` have a disk tier; mode `tmpfs` takes a plain tmpfs instead, to prove a suite against itself.

fresh_mount() {
  local mode=$1 size=$2
  local daemon=${KVCACHEFSD:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/dev/bin/kvcachefsd}
  work=$(mktemp -d /tmp/kv-external-XXXXXX)
  chmod 755 "$work"
  mkdir "$work/mnt"
  trap remove_mount EXIT
  trap 'exit 130' INT TERM
  mount_pool=$work/mnt/p
  local options=() disk=
  case $mode in
    # Small memory, a disk behind it, and an order to evict all there is ten times a second: most entries are cold.
    spill | spill_daemon_io)
      disk_dir=$(mktemp -d "${KVCACHEFS_DISK_DIR:-/var/tmp}/kv-external-XXXXXX")
      disk=,spill=$disk_dir/spill,spill_size=4G
      [ "$mode" = spill ] || options=(-o no_passthrough) ;;
    passthrough) ;;
    daemon_io) options=(-o no_passthrough) ;;
    io_uring) options=(-o io_uring) ;;
    tmpfs)
      mkdir "$mount_pool"
      mount -t tmpfs -o "nosuid,nodev,mode=1777,size=$size" tmpfs "$mount_pool"
      return ;;
    *) echo "no such mode: $mode (passthrough, daemon_io, io_uring, spill, spill_daemon_io, tmpfs)" >&2; exit 2 ;;
  esac
  "$daemon" --pool "p:size=$size$disk" -o "runtime_dir=$work/run" "${options[@]}" "$work/mnt" 2>"$work/log" &
  daemon_pid=$!
  local tries
  for tries in $(seq 200); do
    if [ -e "$work/mnt/.kvcachefs/version" ]; then
      [ -z "$disk" ] || evict_all_the_time &
      return
    fi
    kill -0 "$daemon_pid" 2>/dev/null || break
    sleep 0.05
  done
  echo "the daemon does not serve:" >&2
  cat "$work/log" >&2
  exit 1
}

evict_all_the_time() {
  while kill -0 "$daemon_pid" 2>/dev/null; do
    echo 100% >"$mount_pool/.pool/evict" 2>/dev/null
    sleep 0.1
  done
}

# Prints the daemon's log if it did not end well.
remove_mount() {
  local status=$?
  trap - EXIT
  cd /
  if [ -n "${daemon_pid:-}" ]; then
    kill -TERM "$daemon_pid" 2>/dev/null
    for _ in $(seq 200); do kill -0 "$daemon_pid" 2>/dev/null || break; sleep 0.05; done
    if kill -KILL "$daemon_pid" 2>/dev/null; then echo "the daemon had to be killed" >&2; status=1; fi
    wait "$daemon_pid" 2>/dev/null || { echo "the daemon ended with $?:" >&2; tail -n 40 "$work/log" >&2; status=1; }
  fi
  for at in $(awk -v w="$work/" 'index($5, w) == 1 { print $5 }' /proc/self/mountinfo | tac); do umount -f -l "$at"; done
  rm -rf --one-file-system "$work" ${disk_dir:+"$disk_dir"}
  exit "$status"
}
