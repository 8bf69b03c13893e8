#!/bin/sh
# libfuse as kvcachefs is linked with: fetches Debian's source package of a new enough one, and builds it as a static
# library. packaging/setup.sh does both for a checkout; packaging/build-deb.sh fetches, and the package's rules build.
#
# usage: packaging/fuse.sh minimum               print the oldest version that will do
#        packaging/fuse.sh fetch DIRECTORY       leave the verified source with Debian's patches in DIRECTORY/fuse3-VERSION
#        packaging/fuse.sh tarball FILE          the same as one .tar.xz, which depends on nothing but the version
#        packaging/fuse.sh build SOURCE PREFIX   build it, and install it into PREFIX, which is replaced
#        packaging/fuse.sh mirror                print the mirror that this machine takes Debian from
# fetch and tarball need apt and the network and change nothing of the machine's apt; build needs neither.
set -eu

fail() {
  echo "fuse.sh: $*" >&2
  exit 1
}

readonly fuse_minimum=3.18.3
# The suite with the longer testing behind it comes first.
readonly fuse_suites='forky sid'
# Mirrors that lag pass the week that Debian's testing suites promise; the signature is checked all the same.
readonly mirror_lag_seconds=$((90 * 24 * 3600))
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror this machine already takes Debian from.
debian_uri() {
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
}

known_debian_uri() {
  uri=$(debian_uri)
  [ -n "$uri" ] || { apt-get update -q >&2; uri=$(debian_uri); }
  [ -n "$uri" ] || fail "apt knows no Debian mirror"
}

# apt with sources, lists and cache of its own under $work; of the machine's it reads the options (proxies) only.
private_apt() {
  APT_CONFIG=$work/apt.conf "$@"
}

prepare_private_apt() {
  mkdir -p "$work/none" "$work/lists/partial" "$work/cache/archives/partial" "$work/source"
  chmod 755 "$work"
  if [ "$(id -u)" = 0 ] && id _apt >/dev/null 2>&1; then
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
fetch_source() {
  known_debian_uri
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
    echo "fuse.sh: $suite has fuse3 ${version:-of no version}, wanted is $fuse_minimum" >&2
  done
  fail "no fuse3 >= $fuse_minimum in $fuse_suites at $uri"
}

fetch() {
  work=$(mktemp -d /tmp/kvcachefs-fuse.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' INT TERM
  prepare_private_apt
  fetch_source
  mkdir -p "$1"
  rm -rf "$1"/fuse3-*
  cp -a "$work"/source/fuse3-*/ "$1"
}

# Without the generated HTML of its manual, whose JavaScript has no source in it.
tarball() {
  new=$(mktemp -d /tmp/kvcachefs-fuse-source.XXXXXX)
  (fetch "$new")
  date=$(dpkg-parsechangelog -l "$new"/fuse3-*/debian/changelog -S Timestamp)
  tar -C "$new" --exclude=.pc --exclude=doc/html --transform 's,^[^/]*,fuse3,' --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner \
    --mode='u=rwX,go=rX' -c "$(cd "$new" && echo fuse3-*)" | xz >"$1.new"
  rm -rf "$new"
  mv "$1.new" "$1"
}

# prefer_static would drag in static liburing too; only libfuse itself is to be static. The .pc files say where they
# are by their own place, so that the result may be moved or linked to. libfuse compiles the prefix in, as the place of
# fusermount3 and of fuse.conf: so it is that of Debian's own, wherever this is built.
compile() {
  meson setup "$build" "$source" --prefix=/usr --libdir=lib --buildtype=release \
    -Dpkgconfig.relocatable=true -Ddefault_library=static -Dexamples=false -Dutils=false -Dtests=false \
    -Denable-io-uring=true -Db_staticpic=true &&
    grep -q 'define HAVE_URING' "$build/fuse_config.h" &&
    ninja -C "$build" &&
    DESTDIR=$build/installed meson install -C "$build" --no-rebuild
}

# The source is left as it is. What is built lies beside the result until it is moved there in one step: a build that
# was broken off leaves the old library or none, never half of one.
build() {
  source=$(cd "$1" && pwd)
  mkdir -p "$(dirname "$2")"
  prefix=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
  build=$prefix.build
  rm -rf "$build"
  if ! compile >"$prefix.log" 2>&1; then
    tail -n 40 "$prefix.log" >&2
    fail "building libfuse failed (its last lines are above)"
  fi
  rm -rf "$prefix"
  mv "$build/installed/usr" "$prefix"
  rm -rf "$build" "$prefix.log"
  PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --atleast-version="$fuse_minimum" fuse3 ||
    fail "libfuse was built, but pkg-config finds no version $fuse_minimum in $prefix"
}

case ${1:-}:$# in
  minimum:1) echo "$fuse_minimum" ;;
  mirror:1) known_debian_uri && echo "$uri" ;;
  fetch:2) fetch "$2" ;;
  tarball:2) tarball "$2" ;;
  build:3) build "$2" "$3" ;;
  *) sed -n '/^# usage/,/^# fetch and/s/^# //p' "$0" >&2; exit 2 ;;
esac
