#!/bin/sh
# Makes a Debian 12 or 13 machine ready to build kvcachefs: installs what the build and the tests need and, where
# the system's libfuse is too old, builds Debian's source package of a newer one as a static library into build/deps.
# Run as root. Running it again is harmless and takes seconds. The machine's package sources are never changed.
set -eu

usage() {
  cat <<'TEXT'
usage: packaging/setup.sh [--clang] [--guest] [--suites] [--systemd]
  --clang  install clang 19 as well (the `clang` preset)
  --guest  install what tests/external/numa_guest.sh boots a guest with
  --suites  install the third-party stress programs that .ci/run has tests/external/stress.sh run
  --systemd  install what tests/external/systemd.sh and systemd_fstab.sh start
TEXT
}

fail() {
  echo "setup: $*" >&2
  exit 1
}

readonly fuse_minimum=3.18.3
# The suite with the longer testing behind it comes first.
readonly fuse_suites='forky sid'
# Mirrors that lag pass the week that Debian's testing suites promise; the signature is checked all the same.
readonly mirror_lag_seconds=$((90 * 24 * 3600))
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

with_clang=no
with_guest=no
with_suites=no
with_systemd=no
for argument in "$@"; do
  case $argument in
    --clang) with_clang=yes ;;
    --guest) with_guest=yes ;;
    --suites) with_suites=yes ;;
    --systemd) with_systemd=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/build/deps
[ "$(id -u)" = 0 ] || fail "must run as root: it installs packages"
command -v apt-get >/dev/null || fail "needs apt-get (Debian 12 or 13)"

packages='attr acl ca-certificates ccache cmake debian-archive-keyring dpkg-dev e2fsprogs fio g++ git kmod libaio-dev
  libbenchmark-dev libblkid-dev libcli11-dev libfmt-dev libgmock-dev libgtest-dev liblmdb-dev libmount-dev libnuma-dev
  libsystemd-dev libtomlplusplus-dev liburing-dev libxxhash-dev meson ninja-build nlohmann-json3-dev pkg-config procps python3
  rsync zlib1g-dev'
# A newer Debian has no clang-format 14: there the style check of the sources is left to the one that has it.
optional_packages='clang-format-14'
[ "$with_clang" = no ] || packages="$packages clang-19"
[ "$with_guest" = no ] || packages="$packages busybox-static cpio qemu-system-x86 xz-utils"
[ "$with_suites" = no ] || packages="$packages dbench stress-ng"
[ "$with_systemd" = no ] || packages="$packages systemd attr lsof psmisc"

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

# The mirror this machine already takes Debian from.
debian_uri() {
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
}

# apt with sources, lists and cache of its own under $work; of the machine's it reads the options (proxies) only.
private_apt() {
  APT_CONFIG=$work/apt.conf "$@"
}

prepare_private_apt() {
  mkdir -p "$work/none" "$work/lists/partial" "$work/cache/archives/partial" "$work/source"
  chmod 755 "$work"
  if id _apt >/dev/null 2>&1; then
    chown -R _apt "$work/lists/partial" "$work/source"
  fi
  cat >"$work/apt.conf" <<TEXT
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/none";
Dir::Etc::preferences "$work/preferences";
Dir::Etc::preferencesparts "$work/none";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
TEXT
}

# Leaves the unpacked, verified source in $work/source/fuse3-*.
fetch_fuse_source() {
  uri=$(debian_uri)
  [ -n "$uri" ] || { apt-get update -q; uri=$(debian_uri); }
  [ -n "$uri" ] || fail "apt knows no Debian mirror to fetch the source of libfuse from"
  [ -r "$keyring" ] || fail "$keyring is missing: the source of libfuse could not be verified"
  for suite in $fuse_suites; do
    echo "deb-src [signed-by=$keyring valid-until-min=$mirror_lag_seconds] $uri $suite main" \
      >"$work/sources.list"
    private_apt apt-get update -q -o APT::Update::Error-Mode=any || continue
    version=$(private_apt apt-cache showsrc fuse3 2>/dev/null | awk '$1 == "Version:" { print $2 }' |
      sort -V | tail -n 1)
    if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$fuse_minimum"; then
      (cd "$work/source" && private_apt apt-get source -q "fuse3=$version") ||
        fail "fetching the source of fuse3 $version from $uri ($suite) failed"
      return 0
    fi
    echo "setup: $suite has fuse3 ${version:-of no version}, wanted is $fuse_minimum" >&2
  done
  fail "no fuse3 >= $fuse_minimum in $fuse_suites at $uri"
}

build_fuse() {
  # prefer_static would drag in static liburing too; only libfuse itself is to be static. The .pc files say where
  # they are by their own place, so that build/deps may be moved or linked to.
  meson setup "$work/build" "$work"/source/fuse3-*/ --prefix="$deps" --libdir=lib --buildtype=release \
    -Dpkgconfig.relocatable=true -Ddefault_library=static -Dexamples=false -Dutils=false -Dtests=false \
    -Denable-io-uring=true -Db_staticpic=true &&
    grep -q 'define HAVE_URING' "$work/build/fuse_config.h" &&
    ninja -C "$work/build" &&
    rm -rf "$deps.new" &&
    DESTDIR=$deps.new meson install -C "$work/build" --no-rebuild
}

have_fuse() {
  PKG_CONFIG_PATH=$deps/lib/pkgconfig pkg-config --atleast-version="$fuse_minimum" fuse3 2>/dev/null
}

install_fuse() {
  work=$(mktemp -d /tmp/kvcachefs-setup.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' INT TERM
  prepare_private_apt
  fetch_fuse_source
  if ! build_fuse >"$work/build.log" 2>&1; then
    tail -n 40 "$work/build.log" >&2
    fail "building libfuse $version failed (its last lines are above)"
  fi
  # Moved in one step: a set-up that was broken off leaves the old library or none, never half of one.
  rm -rf "$deps"
  mkdir -p "$(dirname "$deps")"
  mv "$deps.new$deps" "$deps"
  rm -rf "$deps.new"
  have_fuse || fail "libfuse $version was built, but pkg-config does not find it in $deps"
}

install_packages
if have_fuse; then
  echo "setup: ready (libfuse $(PKG_CONFIG_PATH=$deps/lib/pkgconfig pkg-config --modversion fuse3))"
else
  install_fuse
  echo "setup: ready (libfuse $version, static, in build/deps)"
fi
