#!/bin/bash
# Boots a guest of 1 GiB with a Debian kernel, fills a cache of 750M in it and starts a process that takes 512M. With
# `memory_reserve=0` somebody is killed for memory; with a reserve nobody is: the cache gives way, what is left of it is whole, and it grows
# back when the process has ended. Exit 0 only if all of it held, 2 for wrong use.
#
# The guest runs without KVM: a run takes some minutes. It needs what numa_guest.sh needs, and shares the kernel it has fetched.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/external/memory_guest.sh [--preset P] [--suite S] [--kernel FILE] [--timeout S]
  as of tests/external/numa_guest.sh
TEXT
}

preset=dev
suite=trixie
kernel=
timeout_s=1200
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --kernel) kernel=${2:?--kernel needs a file}; shift 2 ;;
    --timeout) timeout_s=${2:?--timeout needs seconds}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
daemon=${KVCACHEFSD:-$root/build/$preset/bin/kvcachefsd}
name=memory_guest
# shellcheck source=tests/external/guest.sh
. "$here/guest.sh"
need_tools

make_initramfs() {
  make_tree "$here/memory_guest.cc"
  cat >>"$work/initramfs/init" <<'TEXT'
value() { sed -n "s/^$1 //p" /mnt/p/.pool/stats; }
# serve RESERVE WORD: a full cache, and the process beside it.
serve() {
  kvcachefsd --pool p:size=750M,entry_size=1M -o memory_reserve=$1,no_supervisor /mnt &
  daemon=$!
  while kill -0 $daemon && [ ! -e /mnt/.kvcachefs/version ]; do sleep 0.2; done
  check store /mnt/p 700 && say $2: stored, $(value used_bytes) used, $(sed -n 's/MemAvailable: *//p' /proc/meminfo) available
  check take 512
  status=$?
  say $2: taken with $status
  kill -0 $daemon && check whole /mnt/p 700 && say $2: the rest is whole, $(value gave_way_bytes) gave way
  tries=0
  while [ "$(value limit_bytes)" != "$(value size_bytes)" ] && [ $tries -lt 50 ]; do sleep 0.2; tries=$((tries + 1)); done
  check store /mnt/p 700 && say $2: stored again, $(value used_bytes) used
  kill $daemon
  wait $daemon
  say $2: daemon ended with $?
  say $2: $(dmesg | grep -c 'Out of memory: Killed') killed
  dmesg -c >/dev/null
}
serve 96M on
serve 0 off
poweroff -f
TEXT
}

if [ -z "$kernel" ] && [ ! -e "$cache/loop.ko" ]; then fetch_kernel; fi
make_initramfs
boot 1G
said() { grep -q "^memory_guest: $1" "$work/console" || fail "it did not say: $1"; }
said 'on: stored, 7'
said 'on: taken with 0'
said 'on: the rest is whole, [1-9]'
said 'on: stored again, [67]'
said 'on: daemon ended with 0'
said 'on: 0 killed'
said 'off: stored, 7'
said 'off: [1-9][0-9]* killed'
echo "memory_guest: all held"
