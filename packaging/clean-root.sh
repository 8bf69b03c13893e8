#!/bin/bash
# Runs a command in a fresh root of a Debian release, and throws away all that it changed there. The root is made by debootstrap
# once, and lies in a cache; each run sees it through an overlay, in namespaces of its own (mounts, processes, host name), so that
# no mount and no process outlives the command. The network is the machine's.
#
# usage: packaging/clean-root.sh [--cache DIR] [--bind FROM:TO]... RELEASE COMMAND...      as root
#   RELEASE       bookworm (Debian 12) or trixie (Debian 13)
#   --cache DIR   where roots and fetched packages are kept; $XDG_CACHE_HOME/kvcachefs or ~/.cache/kvcachefs if not given
#   --bind        a directory that the command sees at TO, too; what it changes there stays
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kvcachefs
binds=()

fail() {
  echo "clean-root.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --cache) cache=${2:?}; shift 2 ;;
    --bind) binds+=("${2:?}"); shift 2 ;;
    -*) sed -n '/^# usage/,/^#   --bind/s/^# //p' "$0" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -ge 2 ] || { sed -n '/^# usage/,/^#   --bind/s/^# //p' "$0" >&2; exit 2; }
release=$1
shift
case $release in bookworm | trixie) ;; *) fail "no release that is known: $release (bookworm or trixie)" ;; esac
[ "$(id -u)" = 0 ] || fail 'must run as root'

mkdir -p "$cache/archives-$release"
cache=$(cd "$cache" && pwd)
root=$cache/$release

# A root that was begun and not finished has another name.
make_root() {
  command -v debootstrap >/dev/null || fail 'needs debootstrap (packaging/setup.sh --package)'
  local mirror
  mirror=$("$here/fuse.sh" mirror)
  rm -rf --one-file-system "$root.new"
  echo "clean-root.sh: making a root of $release (once)" >&2
  if ! unshare --mount debootstrap --variant=minbase --cache-dir="$cache/archives-$release" \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$release" "$root.new" "$mirror" >"$cache/$release.log" 2>&1; then
    tail -n 20 "$cache/$release.log" >&2
    fail "debootstrap of $release from $mirror failed (the end of $cache/$release.log is above)"
  fi
  # Of the machine's own settings of apt, how the mirror is reached.
  apt-config dump | grep -E '^Acquire::(http|https)::Proxy ' >"$root.new/etc/apt/apt.conf.d/10proxy" || true
  mv "$root.new" "$root"
}

exec 9>"$cache/$release.lock"
flock 9
[ -d "$root" ] || make_root
exec 9>&-

scratch=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' INT TERM
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"

enter='
  set -e
  archives=$1 lower=$2 scratch=$3 binds=$4
  shift 4
  root=$scratch/root
  mount --make-rprivate /
  # volatile: without the syncs of a package manager, which take minutes; all of it is thrown away anyway.
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$scratch/upper,workdir=$scratch/work,volatile" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  # A /dev of its own: a service manager in there sets modes of what it finds.
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
    mknod -m 666 "$root/dev/${node%%:*}" c $(echo "${node#*:}" | tr : " ")
  done
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"; done
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  # Fetched packages are for all runs; the lock on them is each run its own, or a second at the same time would fail. apt checks what it fetched.
  mount --bind "$archives" "$root/var/cache/apt/archives"
  touch "$archives/lock" "$scratch/lock"
  mount --bind "$scratch/lock" "$root/var/cache/apt/archives/lock"
  cat /etc/resolv.conf >"$root/etc/resolv.conf" 2>/dev/null || true
  cat /etc/hosts >"$root/etc/hosts"
  while IFS=: read -r from to; do
    [ -n "$from" ] || continue
    mkdir -p "$root$to"
    mount --bind "$from" "$root$to"
  done <<TEXT
$binds
TEXT
  hostname clean
  # apt removes what it fetched when it has installed it, unless told otherwise.
  echo "APT::Keep-Downloaded-Packages true; Binary::apt::APT::Keep-Downloaded-Packages true;" >"$root/etc/apt/apt.conf.d/20keep"
  mkdir "$root/run/machine"
  cd "$root"
  pivot_root . run/machine
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    chroot . sh -euc "umount -l /run/machine; rmdir /run/machine; cd /; exec \"\$@\"" sh "$@"'
status=0
unshare --mount --pid --fork --kill-child --uts sh -c "$enter" sh "$cache/archives-$release" "$root" "$scratch" \
  "$(printf '%s\n' "${binds[@]:-}")" "$@" || status=$?
exit $status
