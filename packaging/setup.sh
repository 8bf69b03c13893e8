#!/bin/sh
# Makes a Debian 12 or 13 machine ready to build kvcachefs: installs what the build and the tests need and, where
# the system's libfuse is too old, builds Debian's source package of a newer one as a static library into build/deps.
# Run as root. Running it again is harmless and takes seconds. The machine's package sources are never changed.
set -eu

usage() {
  cat <<'TEXT'
usage: packaging/setup.sh [--clang] [--guest] [--suites] [--systemd] [--package] [--deb]
  --clang  install clang 19 and its sanitizers as well (the `clang` and `fuzz` presets)
  --guest  install what tests/external/numa_guest.sh boots a guest with
  --suites  install the third-party stress programs that .ci/run --all has tests/external/stress.sh run, and promtool
  --systemd  install what tests/external/systemd.sh and systemd_fstab.sh start
  --package  install what packaging/build-deb.sh and packaging/build-rpm.sh run, and rpmlint
  --deb    install what tests/external/package.sh --here builds the Debian package with, lintian and debootstrap
TEXT
}

fail() {
  echo "setup: $*" >&2
  exit 1
}

with_clang=no
with_guest=no
with_suites=no
with_systemd=no
with_package=no
with_deb=no
for argument in "$@"; do
  case $argument in
    --clang) with_clang=yes ;;
    --guest) with_guest=yes ;;
    --suites) with_suites=yes ;;
    --systemd) with_systemd=yes ;;
    --package) with_package=yes ;;
    --deb) with_deb=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/build/deps
fuse_minimum=$("$root/packaging/fuse.sh" minimum)
[ "$(id -u)" = 0 ] || fail "must run as root: it installs packages"
command -v apt-get >/dev/null || fail "needs apt-get (Debian 12 or 13)"

packages='attr acl ca-certificates ccache cmake debian-archive-keyring dpkg-dev e2fsprogs fio g++ git kmod libaio-dev
  libbenchmark-dev libblkid-dev libcli11-dev libfmt-dev libgmock-dev libgtest-dev liblmdb-dev libmicrohttpd-dev libmount-dev
  libnuma-dev libsystemd-dev libtomlplusplus-dev liburing-dev libxxhash-dev meson ninja-build nlohmann-json3-dev pkg-config
  procps python3 rsync zlib1g-dev'
# A newer Debian has no clang-format 14: there the style check of the sources is left to the one that has it.
optional_packages='clang-format-14'
[ "$with_clang" = no ] || packages="$packages clang-19 libclang-rt-19-dev"
[ "$with_guest" = no ] || packages="$packages busybox-static cpio qemu-system-x86 xz-utils"
[ "$with_suites" = no ] || packages="$packages dbench prometheus stress-ng"
[ "$with_systemd" = no ] || packages="$packages systemd attr lsof psmisc"
[ "$with_package" = no ] || packages="$packages debootstrap rpm rpmlint xz-utils"
[ "$with_deb" = no ] || packages="$packages debhelper debootstrap lintian xz-utils"

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

is_offered() {
  apt-cache policy "$1" | grep -q 'Candidate: [^(]'
}

install_packages() {
  missing=
  for package in $packages; do
    is_installed "$package" || missing="$missing $package"
  done
  absent=
  for package in $optional_packages; do
    is_installed "$package" || absent="$absent $package"
  done
  [ -n "$missing$absent" ] || return 0
  # One failing source (of somebody else's software) is no reason to stop: what is needed may well be there.
  [ -z "$missing" ] || apt-get update -q || echo "setup: not every package source answered; going on" >&2
  for package in $absent; do
    if is_offered "$package"; then
      missing="$missing $package"
    fi
  done
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing ||
    fail "apt-get could not install:$missing"
}

have_fuse() {
  PKG_CONFIG_PATH=$deps/lib/pkgconfig pkg-config --atleast-version="$fuse_minimum" fuse3 2>/dev/null
}

fuse_version() {
  PKG_CONFIG_PATH=$deps/lib/pkgconfig pkg-config --modversion fuse3
}

install_fuse() {
  work=$(mktemp -d /tmp/kvcachefs-setup.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' INT TERM
  "$root/packaging/fuse.sh" fetch "$work"
  "$root/packaging/fuse.sh" build "$work"/fuse3-*/ "$deps"
}

install_packages
if have_fuse; then
  echo "setup: ready (libfuse $(fuse_version))"
else
  install_fuse
  echo "setup: ready (libfuse $(fuse_version), static, in build/deps)"
fi
