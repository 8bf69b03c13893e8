#!/bin/bash
# Builds the Debian package of what is committed (HEAD), in a clean root of each release, as a user and without a network:
# .deb, -dbgsym, .dsc with its tarballs, .changes and .buildinfo in OUTPUT/RELEASE. Needs debootstrap, as packaging/setup.sh
# --package installs it; the machine's own packages have no part in it.
#
# usage: packaging/build-deb.sh [--release RELEASE]... [--output DIR] [--cache DIR] [--version V] [--reproduce] [--lintian] [--here]   as root
#   --release RELEASE  bookworm or trixie; both if not given
#   --output DIR       build/deb if not given
#   --cache DIR        roots, fetched packages and the source of libfuse, see packaging/clean-root.sh
#   --version V        another version than that of packaging/debian/changelog (0.1.0-2)
#   --reproduce        build a second time, elsewhere and under other settings, and compare every .deb byte by byte
#   --lintian          have lintian of Debian 13 look at the result, down to pedantic; any tag that is left is a failure
#   --here             a quick look for CI: the .deb alone, for this machine's release and with its packages (packaging/setup.sh --deb),
#                      lintian's included. No clean root, no user of its own, no source package, no -dbgsym
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kvcachefs
output=$top/build/deb
version=
releases=()
with_reproduction=no
with_lintian=no
here_only=no

fail() {
  echo "build-deb.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --release) releases+=("${2:?}"); shift 2 ;;
    --output) output=${2:?}; shift 2 ;;
    --cache) cache=${2:?}; shift 2 ;;
    --version) version=${2:?}; shift 2 ;;
    --reproduce) with_reproduction=yes; shift ;;
    --lintian) with_lintian=yes; shift ;;
    --here) here_only=yes; shift ;;
    *) sed -n '/^# usage/,/^#                      lintian/s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
if [ $here_only = yes ]; then releases=("$(. /etc/os-release && echo "$VERSION_CODENAME")"); fi
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
[ "$(id -u)" = 0 ] || fail 'must run as root: it makes roots and mounts'
mkdir -p "$cache" "$output"
cache=$(cd "$cache" && pwd)
output=$(cd "$output" && pwd)
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM

from_git() {
  git -c safe.directory="$top" -C "$top" "$@"
}

# prepare_source RELEASE: both tarballs and the unpacked tree with its debian/ in $work/source. Each release has a version of its
# own, because its programs are other ones; that of a later release is greater.
prepare_source() {
  local release=$1 number
  number=$([ "$release" = bookworm ] && echo 12 || echo 13)
  from_git diff --quiet HEAD || echo 'build-deb.sh: what is not committed is left out' >&2
  rm -rf "$work/source"
  mkdir -p "$work/source"
  local wanted upstream
  wanted=${version:-$(from_git show HEAD:packaging/debian/changelog | dpkg-parsechangelog -l - -S Version)}
  upstream=${wanted%-*}
  from_git archive --prefix="kvcachefs-$upstream/" HEAD | xz >"$work/source/kvcachefs_$upstream.orig.tar.xz"
  cp "$cache/fuse3.tar.xz" "$work/source/kvcachefs_$upstream.orig-fuse3.tar.xz"
  tar -C "$work/source" -xf "$work/source/kvcachefs_$upstream.orig.tar.xz"
  mv "$work/source/kvcachefs-$upstream" "$work/source/tree"
  tar -C "$work/source/tree" -xf "$cache/fuse3.tar.xz"
  cp -a "$work/source/tree/packaging/debian" "$work/source/tree/debian"
  sed -i "1s/.*/kvcachefs ($wanted+deb$number) $release; urgency=medium/" "$work/source/tree/debian/changelog"
}

# The commands that run in the root. They fetch all packages before the build, which has no network.
in_root='
  set -eu
  umask 022
  apt-get update -q
  apt-get install -q -y --no-install-recommends build-essential fakeroot
  cd /source && dpkg-source -b tree
  apt-get build-dep -q -y --no-install-recommends ./kvcachefs_*.dsc
  useradd -m builder
  # build DIRECTORY: from the .dsc alone.
  build() {
    mkdir -p "$1"
    cp /source/kvcachefs_*.dsc /source/kvcachefs_*.tar.xz "$1"
    chown -R builder "$1"
    unshare --net runuser -u builder -- sh -euc "
      cd $1
      umask $2
      export TZ=$3 LC_ALL=$4 LANG=$4
      dpkg-source -x kvcachefs_*.dsc tree
      cd tree
      dpkg-buildpackage --no-sign --build=full"
    rm -rf "$1/tree"
  }
  build /build/kvcachefs 022 UTC C.UTF-8
  find /build/kvcachefs -maxdepth 1 -type f -exec cp -t /output {} +
  [ "$1" = yes ] || exit 0
  build /tmp/another/place/kvcachefs-again 0027 Asia/Tokyo POSIX
  for package in /build/kvcachefs/*.deb; do
    again=/tmp/another/place/kvcachefs-again/${package##*/}
    cmp "$package" "$again" || { cp "$again" "/output/${package##*/}.again"; exit 1; }
    echo "reproduced: ${package##*/} $(sha256sum <"$package" | cut -c1-16)"
  done'

look='
  set -eu
  apt-get update -q >/dev/null
  apt-get install -q -y --no-install-recommends lintian >/dev/null
  useradd -m looker
  cp -r /output /home/looker/result
  chown -R looker /home/looker/result
  # The debhelper of Debian 12 knows units in /lib only, which Debian 13 forbids its own packages.
  suppressed=$([ "$1" = bookworm ] && echo "--suppress-tags aliased-location" || true)
  runuser -u looker -- lintian $suppressed --pedantic --info --show-overrides \
    --fail-on error,warning,info,pedantic /home/looker/result/*.changes'

# Without -g, whose output would be a package of its own, and without -O2, which takes most of the time: these packages are thrown away.
build_here() {
  local release=$1
  (cd "$work/source/tree" && DEB_BUILD_OPTIONS="noautodbgsym noopt parallel=$(nproc)" DEB_CXXFLAGS_APPEND=-g0 DEB_CFLAGS_APPEND=-g0 \
    dpkg-buildpackage --no-sign --build=binary >"$output/$release/build.log" 2>&1) || return 1
  find "$work/source" -maxdepth 1 \( -name '*.deb' -o -name '*.changes' -o -name '*.buildinfo' \) -exec cp -t "$output/$release" {} +
}

[ -e "$cache/fuse3.tar.xz" ] || "$here/fuse.sh" tarball "$cache/fuse3.tar.xz"
for release in "${releases[@]}"; do
  started=$SECONDS
  prepare_source "$release"
  rm -rf "${output:?}/$release"
  mkdir -p "$output/$release"
  if [ $here_only = yes ]; then
    build_here "$release" || { tail -n 40 "$output/$release/build.log" | cut -c 1-300 >&2; fail 'the build failed'; }
  elif ! "$here/clean-root.sh" --cache "$cache" --bind "$work/source:/source" --bind "$output/$release:/output" "$release" \
    sh -c "$in_root" sh "$with_reproduction" >"$output/$release/build.log" 2>&1; then
    tail -n 40 "$output/$release/build.log" | cut -c 1-300 >&2
    fail "the build for $release failed ($output/$release/build.log)"
  fi
  grep '^reproduced: ' "$output/$release/build.log" || true
  echo "build-deb.sh: $release in $((SECONDS - started)) s: $(cd "$output/$release" && echo ./*.deb)"
  if [ "$with_lintian" = yes ] && [ $here_only = yes ]; then
    # The lintian of Debian 12 does not know Static-Built-Using yet.
    lintian --allow-root --info --suppress-tags unknown-field --fail-on error,warning "$output/$release"/*.changes || fail 'lintian has something to say of the package'
  elif [ "$with_lintian" = yes ]; then
    "$here/clean-root.sh" --cache "$cache" --bind "$output/$release:/output" trixie sh -c "$look" sh "$release" ||
      fail "lintian has something to say of the package for $release"
  fi
done
