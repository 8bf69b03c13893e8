#!/bin/bash
# Boots Debian 12's kernel (6.1: no passthrough, no requests that are sent again, no shared mapping of what goes past
# the page cache) in a guest, mounts the built daemon in it and looks at what a client sees: stores, reads, mappings,
# eviction, spill and promotion, a restart, and what a death of the serving process means there.
# old_kernel_guest.cc has the checks. Prints what did not hold; exit 0 only if all did, 2 for wrong use.
#
# The guest runs without KVM, so any machine will do: a run takes about two minutes. Needs root only for apt's download,
# 1.5 GiB of memory, g++ and the packages qemu-system-x86, busybox-static and cpio. The kernel (a download of 70 MB) is
# fetched once, into build/numa-guest.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/external/old_kernel_guest.sh [--preset P] [--suite S] [--timeout S]
  --preset P   the build whose daemon is checked: dev (default) or release; KVCACHEFSD names another one
  --suite S    the Debian suite whose kernel boots: bookworm (default); one with passthrough is refused
  --timeout S  give the guest up after that many seconds (default 600)
TEXT
}

preset=dev
suite=bookworm
kernel=
timeout_s=600
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --timeout) timeout_s=${2:?--timeout needs seconds}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
daemon=${KVCACHEFSD:-$root/build/$preset/bin/kvcachefsd}
name=old_kernel_guest
# shellcheck source=tests/external/guest.sh
. "$here/guest.sh"
need_tools
if [ ! -e "$cache/loop.ko" ]; then fetch_kernel; fi

make_tree "$here/old_kernel_guest.cc"
cat >>"$work/initramfs/init" <<'TEXT'
# expect WHAT COMMAND...
expect() { what=$1; shift; if "$@"; then say "$what: held"; else say "$what: DID NOT HOLD"; fi; }
# serve POOL [OPTION...]: in the background.
serve() {
  kvcachefsd --pool "$@" /mnt &
  daemon=$!
  while kill -0 $daemon && [ ! -e /mnt/.kvcachefs/version ]; do sleep 0.2; done
}
end() { kill $daemon; expect "$1 ends well" wait $daemon; }
stat_of() { awk -v name=$1 '$1 == name { print $2 }' /mnt/p/.pool/stats; }
# is NAME VALUE: within a minute.
is() { for try in $(seq 120); do [ "$(stat_of $1)" = $2 ] && return; sleep 0.5; done; say "$1 is $(stat_of $1)"; return 1; }

say "Linux $(uname -r)"
kvcachefsd --check-system >/run/system
expect 'a look at the machine' [ $? = 0 ]
expect 'a look finds what is absent' grep -Eq '^passthrough +absent +tried' /run/system
mkdir /shm && mount -t tmpfs -o huge=never shm /shm
serve p:size=48M
expect 'daemon I/O' grep -q 'io_mode daemon' /mnt/.kvcachefs/stats
expect store check store /mnt/p
expect read check read /mnt/p
expect map check map /mnt/p
expect coherent check coherent /mnt/p
expect overfill check overfill /mnt/p
check rates /mnt/p
end 'a pool in memory'

serve p:size=48M -o no_page_cache
expect 'store past the page cache' check store /mnt/p 4
expect 'read past it' check read /mnt/p 4
expect 'map past it' check map_private /mnt/p 4
check rates /mnt/p
end 'a pool without page cache'

dd if=/dev/zero of=/run/disk bs=1M count=64 2>/dev/null
losetup /dev/loop0 /run/disk
disk=p:size=40M,spill=/dev/loop0,catalog=/run/catalog
serve $disk
expect 'store before a disk' check store /mnt/p 2
expect spill is dirty_entries 0
echo 100% >/mnt/p/.pool/evict
expect evict is cold_entries 24
expect 'promotion by reads' check read /mnt/p 2
echo 100% >/mnt/p/.pool/evict
expect 'promotion by maps' check map /mnt/p 2
end 'a pool with a disk'
serve $disk
expect 'a restart' check read /mnt/p 2

# Without requests that are sent again no process takes over the connection: calls that wait get an error, and the next
# process has another connection and all entries.
check until_it_ends /mnt/p 3 &
client=$!
until [ -e /mnt/p/entry203 ] || ! kill -0 $client; do :; done
expect 'what is to be killed' kill -9 $(awk '$1 == "pid" { print $2 }' /mnt/.kvcachefs/stats)
expect 'a client in the midst of it gets an error, and waits for nobody' wait $client
until [ -e /mnt/.kvcachefs/version ] || ! kill -0 $daemon; do sleep 0.2; done
expect 'a death' check read /mnt/p 2
end 'a pool after a death'
serve $disk
expect 'a start after a death' check read /mnt/p 2
end 'a pool after a death and a start'
poweroff -f
TEXT
boot 1G

# Each check of above by its name: one that the guest did not come to has not held either.
missing=
while read -r check; do
  grep -qF "$name: $check: held" "$work/console" || missing+="${missing:+, }'$check'"
done < <(sed -nE "s/^expect ('([^']*)'|([^ ]+)) .*/\\2\\3/p; s/^end '([^']*)'$/\\1 ends well/p" "$work/initramfs/init")
[ -z "$missing" ] || fail "what did not hold: $missing"
! grep -E 'NOT|Call Trace' "$work/console" >&2 || fail "all held, and yet these lines"
