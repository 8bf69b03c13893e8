# Sourced by the scripts beside it: a fresh mount of the built daemon in a given mode, gone when the script ends.
# Sets $mount_pool, the directory of a pool `p`. Needs root. KVCACHEFSD names the daemon (default: that of
# build/dev); modes `spill` and `spill_daemon_io` have a disk tier, whose file is $spill_file; mode `tmpfs` takes a plain tmpfs instead,
# to prove a suite against itself. KVCACHEFS_TEST_KILL=1 kills the serving process all the time.

# fresh_mount MODE SIZE [POOL...]: further pools of the same size, with a disk tier of their own where the mode has one.
fresh_mount() {
  local mode=$1 size=$2 pool pools=("${@:3}") more=()
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
      spill_file=$disk_dir/spill
      disk=,spill=$spill_file,spill_size=4G
      [ "$mode" = spill ] || options=(-o no_passthrough) ;;
    passthrough) ;;
    daemon_io) options=(-o no_passthrough) ;;
    io_uring) options=(-o io_uring) ;;
    tmpfs)
      for pool in p "${pools[@]}"; do
        mkdir "$work/mnt/$pool"
        mount -t tmpfs -o "nosuid,nodev,mode=1777,size=$size" tmpfs "$work/mnt/$pool"
      done
      return ;;
    *) echo "no such mode: $mode (passthrough, daemon_io, io_uring, spill, spill_daemon_io, tmpfs)" >&2; exit 2 ;;
  esac
  for pool in "${pools[@]}"; do more+=(--pool "$pool:size=$size${disk:+,spill=$disk_dir/$pool,spill_size=4G}"); done
  daemon_command=("$daemon" --pool "p:size=$size$disk" "${more[@]}" -o "runtime_dir=$work/run" "${options[@]}" "$work/mnt")
  start_daemon
  if [ -n "$disk" ]; then
    evict_all_the_time p "${pools[@]}" &
    tormentors+=($!)
  fi
  if [ "${KVCACHEFS_TEST_KILL:-}" = 1 ]; then
    kill_all_the_time &
    tormentors+=($!)
  fi
}

# Runs $daemon_command until it serves.
start_daemon() {
  "${daemon_command[@]}" 2>>"$work/log" &
  daemon_pid=$!
  for _ in $(seq 200); do
    if [ -e "$work/mnt/.kvcachefs/version" ]; then return; fi
    kill -0 "$daemon_pid" 2>/dev/null || break
    sleep 0.05
  done
  echo "the daemon does not serve:" >&2
  cat "$work/log" >&2
  exit 1
}

tormentors=()

evict_all_the_time() {
  local pool
  while kill -0 "$daemon_pid" 2>/dev/null; do
    for pool; do echo 100% >"$work/mnt/$pool/.pool/evict" 2>/dev/null; done
    sleep 0.1
  done
}

# Each child has served for a moment when it dies, one in four dies before. One in eight lives for seconds: a request begins
# anew with each child, and an fsync of an entry needs one that lives until it is on disk.
kill_all_the_time() {
  local killed=0 child
  while kill -0 "$daemon_pid" 2>/dev/null; do
    if [ $((RANDOM % 4)) != 0 ] && [ "$(grep -c ' serves ' "$work/log")" -le "$killed" ]; then
      sleep 0.02
      continue
    fi
    sleep "$((RANDOM % 8 ? 0 : 1 + RANDOM % 3)).$(printf %03d $((RANDOM % 300)))"
    killed=$(grep -c ' serves ' "$work/log")
    child=$(cat "/proc/$daemon_pid/task/$daemon_pid/children" 2>/dev/null)
    # shellcheck disable=SC2086 -- one word, or none
    [ -z "$child" ] || kill -KILL $child 2>/dev/null
  done
}

stop_tormentors() {
  local pid
  for pid in "${tormentors[@]}"; do
    kill -KILL "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  tormentors=()
}

# expected_failures LIST MODE: what LIST expects to fail there, sorted. Its lines: MODES TEST REASON; MODES is some modes with commas,
# or `kvcachefs` for all but tmpfs, or `all`; TEST is one word.
expected_failures() {
  awk -v mode="$2" '/^[^#]/ {
    n = split($1, modes, ",")
    for (i = 1; i <= n; i++)
      if (modes[i] == mode || modes[i] == "all" || (modes[i] == "kvcachefs" && mode != "tmpfs")) { print $2; break }
  }' "$1" | sort -u
}

# Ends the daemon; whether it ended well. Prints its log if not.
stop_daemon() {
  local status=0
  stop_tormentors
  kill -TERM "$daemon_pid" 2>/dev/null
  for _ in $(seq 400); do kill -0 "$daemon_pid" 2>/dev/null || break; sleep 0.05; done
  if kill -KILL "$daemon_pid" 2>/dev/null; then echo "the daemon had to be killed" >&2; status=1; fi
  wait "$daemon_pid" 2>/dev/null || { echo "the daemon ended with $?:" >&2; tail -n 40 "$work/log" >&2; status=1; }
  daemon_pid=
  return "$status"
}

remove_mount() {
  local status=$?
  trap - EXIT
  cd /
  if [ -n "${daemon_pid:-}" ]; then stop_daemon || status=1; fi
  for at in $(awk -v w="$work/" 'index($5, w) == 1 { print $5 }' /proc/self/mountinfo | tac); do umount -f -l "$at"; done
  rm -rf --one-file-system "$work" ${disk_dir:+"$disk_dir"}
  exit "$status"
}
