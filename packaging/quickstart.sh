#!/bin/bash
# From a bare Debian machine to a mounted pool in one command: sets up, builds, mounts, stores and reads files through
# the mount, shows what the usual tools say about them and how fast it is beside /dev/shm. Leaves the pool mounted.
# Run as root. Running it again while the pool is mounted uses that mount.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: packaging/quickstart.sh [--mount DIR] [--size SIZE] [--no-setup] [--programs DIR]
  --mount DIR   where to mount (default /mnt/kvcachefs-demo)
  --size SIZE   of the pool `demo` (default 1G, or a quarter of memory where that is less)
  --no-setup    do not run packaging/setup.sh first
  --programs DIR  take the programs there; set up and build nothing
TEXT
}

fail() {
  echo "quickstart: $*" >&2
  exit 1
}

mount_point=/mnt/kvcachefs-demo
size=
setup=yes
bin=
while [ $# -gt 0 ]; do
  case $1 in
    --mount) mount_point=${2:?--mount needs a directory}; shift 2 ;;
    --size) size=${2:?--size needs a size}; shift 2 ;;
    --no-setup) setup=no; shift ;;
    --programs) bin=$(cd "${2:?--programs needs a directory}" && pwd); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."
root=$PWD
[ "$(id -u)" = 0 ] || fail "must run as root: it installs packages and mounts"
case $mount_point in
  /?*) ;;
  *) fail "--mount needs an absolute directory" ;;
esac
export LC_ALL=C

# show COMMAND...: what a user would type, and what it says.
show() {
  echo "\$ $*"
  "$@"
  echo
}

build() {
  [ "$setup" = no ] || packaging/setup.sh
  if [ ! -f build/release/build.ninja ]; then
    if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}; fi
    cmake --preset release -DCMAKE_UNITY_BUILD=ON >/dev/null  # many files as one: from nothing, in half of the time
  fi
  cmake --build build/release -j"$(nproc)" --target kvcachefsd --target kvcachefs --target mount.kvcachefs
}

default_size() {
  awk '/^MemTotal:/ { quarter = int($2 / 4 / 1024); print (quarter < 1024 ? quarter "M" : "1G") }' /proc/meminfo
}

serves() {
  [ "$(findmnt -n -o FSTYPE --mountpoint "$mount_point" 2>/dev/null | tail -n 1)" = fuse.kvcachefs ] &&
    [ -r "$mount_point/.kvcachefs/version" ]
}

mount_pool() {
  if serves; then
    echo "$mount_point is mounted already: using it"
    [ -d "$pool" ] || mkdir "$pool"
    return 0
  fi
  [ -e /dev/fuse ] || modprobe fuse || fail "the kernel has no FUSE (/dev/fuse is missing)"
  # A mount whose daemon is gone answers nothing, not even stat: the daemon itself clears it away.
  [ -n "$(findmnt -n --mountpoint "$mount_point" 2>/dev/null)" ] || mkdir -p "$mount_point"
  show "$bin/kvcachefsd" --daemonize --pool "demo:size=${size:-$(default_size)}" "$mount_point"
  serves || fail "kvcachefsd returned, but $mount_point does not serve"
}

# As clients do: a name of its own first, then the entry appears whole.
store_and_read() {
  local block entry
  mkdir -p "$pool/model"
  # The pool learns the size of its entries from the first; from then on it has huge pages ready for them.
  for block in 0 1 2 3; do
    entry=$pool/model/block-$block.bin
    show dd if=/dev/urandom of="$work/block" bs=1M count=32 status=none
    show cp "$work/block" "$entry.tmp"
    show mv "$entry.tmp" "$entry"
    show cmp "$work/block" "$entry"
  done
  # Existing files of this very source tree, small and large.
  rm -rf "${pool:?}/source" "${pool:?}/bin"
  show cp -r packaging "$pool/source"
  show diff -r packaging "$pool/source"
  show cp -r "$bin" "$pool/bin"
  show diff -r "$bin" "$pool/bin"
  show setfattr -n user.kv.priority -v 10 "$pool/model/block-0.bin"
}

tell() {
  show df -h "$pool"
  show ls -ls "$pool/model"
  show getfattr -d -m - "$pool/model/block-0.bin"
  show cat "$pool/.pool/stats"
  show cat "$pool/.pool/numa"
  show cat "$mount_point/.kvcachefs/stats"
  show "$bin/kvcachefs" --mount "$mount_point" status
}

# seconds DD-ARGUMENTS...: the best of several runs, as dd itself counted them.
seconds() {
  for _ in 1 2 3 4 5 6 7; do
    dd bs=1M "$@" 2>&1 | sed -n 's/.*copied, \([0-9.e-]*\) s,.*/\1/p'
  done | sort -g | head -n 1
}

compare_speed() {
  local there=$work/speed here=$pool/speed what there_s here_s
  echo "32 MiB in pieces of 1 MiB, best of 7:"
  for what in write read; do
    if [ $what = write ]; then
      there_s=$(seconds if=/dev/zero of="$there" count=32)
      here_s=$(seconds if=/dev/zero of="$here" count=32)
    else
      there_s=$(seconds if="$there" of=/dev/null)
      here_s=$(seconds if="$here" of=/dev/null)
    fi
    awk -v what=$what -v here="$here_s" -v there="$there_s" 'BEGIN {
      gb = 32 * 1048576 / 1e9
      printf "  %-5s  kvcachefs %6.2f GB/s   /dev/shm %6.2f GB/s   ratio %.2f\n", what, gb / here, gb / there, there / here }'
  done
  rm -f "$here"
}

if [ -z "$bin" ]; then
  build
  bin=$root/build/release/bin
fi
pool=$mount_point/demo
work=$(mktemp -d /dev/shm/kvcachefs-quickstart.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
mount_pool
store_and_read
tell
compare_speed
cat <<TEXT

The pool is mounted at $pool: point a client's cache directory there.
To unmount:  umount $mount_point
TEXT
