#!/bin/bash
# Boots a guest of two memory nodes (1 GiB and one processor each) with a Debian kernel, mounts the built daemon in it
# and checks where entries come to lie: on the node of the process that stores them, also for what another node's
# process writes on; on the other node once theirs is full; back on their own node when they were cold and another
# node's process reads them; in huge pages in all cases. numa_guest.cc has the checks:
# the truth is move_pages(2) and smaps of a mapping of each entry. Prints each check and `N of M checks`; exit 0 only
# if all held, 2 for wrong use.
#
# The guest runs without KVM, so any machine will do: a run takes one to a few minutes, most of it the writing of 2 GiB.
# Needs root only for apt's download, 3 GiB of memory, g++ and the packages qemu-system-x86, busybox-static and cpio.
# The kernel (a download of 110 MB) is fetched once, into build/numa-guest; the machine's package sources stay as
# they are. Nothing is mounted or loaded outside the guest.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/external/numa_guest.sh [--preset P] [--suite S] [--kernel FILE] [--io MODE]
  --preset P     the build whose daemon is checked: dev (default) or release; KVCACHEFSD names another one
  --suite S      the Debian suite whose newest kernel boots: trixie (default), bookworm-backports, forky, ...
  --kernel FILE  boot this kernel instead; it must have FUSE and loop devices built in
  --io MODE      passthrough (default) or daemon_io
  --timeout S    give the guest up after that many seconds (default 1200)
TEXT
}

preset=dev
suite=trixie
kernel=
io=passthrough
timeout_s=1200
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --kernel) kernel=${2:?--kernel needs a file}; shift 2 ;;
    --io) io=${2:?--io needs a mode}; shift 2 ;;
    --timeout) timeout_s=${2:?--timeout needs seconds}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
case $io in
  passthrough) daemon_options='' reported=passthrough ;;
  daemon_io) daemon_options='-o no_passthrough' reported=daemon ;;
  *) usage >&2; exit 2 ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
daemon=${KVCACHEFSD:-$root/build/$preset/bin/kvcachefsd}
name=numa_guest
# shellcheck source=tests/external/guest.sh
. "$here/guest.sh"
need_tools

make_initramfs() {
  make_tree "$here/numa_guest.cc"
  cat >>"$work/initramfs/init" <<TEXT
# What is huge is to be so from the start, not gathered later.
echo 4294967295 >/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
# serve POOL CHECK: a daemon, its checks, its end.
serve() {
  # What is looked at is where entries come to lie, not how the pool gives way.
  kvcachefsd --pool \$1 -o memory_reserve=0 $daemon_options /mnt &
  daemon=\$!
  while kill -0 \$daemon && [ ! -e /mnt/.kvcachefs/version ]; do sleep 0.2; done
  check /mnt/p $reported \$2 && say \$2 held
  kill \$daemon
  wait \$daemon
  say \$2: daemon ended with \$?
}
dd if=/dev/zero of=/run/disk bs=1M count=192 2>/dev/null
losetup /dev/loop0 /run/disk
serve p:size=160M,spill=/dev/loop0,catalog=/run/catalog promotion
losetup -d /dev/loop0
rm -r /run/disk /run/catalog
serve p:size=1400M placement
poweroff -f
TEXT
}

if [ -z "$kernel" ] && [ ! -e "$cache/loop.ko" ]; then fetch_kernel; fi
make_initramfs
boot 2G \
  -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
  -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
for part in promotion placement; do
  grep -q "^numa_guest: $part held" "$work/console" || fail "$part did not hold"
  grep -q "^numa_guest: $part: daemon ended with 0" "$work/console" || fail "$part: the daemon did not end well"
done
