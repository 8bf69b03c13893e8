#!/bin/bash
# Builds the RPM of what is committed (HEAD) with this machine's rpmbuild, and has rpmlint look at it if there is one. On Debian
# the packages that the spec names have other names, so that rpmbuild does not look for them there (packaging/setup.sh installs them).
#
# usage: packaging/build-rpm.sh [--output DIR] [--cache DIR]
#   --output DIR  build/rpm if not given
#   --cache DIR   where the source of libfuse is kept, as packaging/build-deb.sh does
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kvcachefs
output=$top/build/rpm

while [ $# -gt 0 ]; do
  case $1 in
    --output) output=${2:?}; shift 2 ;;
    --cache) cache=${2:?}; shift 2 ;;
    *) sed -n '/^# usage/,/^#   --cache/s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
command -v rpmbuild >/dev/null || { echo 'build-rpm.sh: needs rpmbuild (packaging/setup.sh --package)' >&2; exit 1; }
mkdir -p "$cache" "$output"
output=$(cd "$output" && pwd)
work=$(mktemp -d /var/tmp/kvcachefs-rpm.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

spec=$top/packaging/rpm/kvcachefs.spec
version=$(sed -n 's/^Version: *//p' "$spec")
mkdir "$work/SOURCES"
[ -e "$cache/fuse3.tar.xz" ] || "$here/fuse.sh" tarball "$cache/fuse3.tar.xz"
cp "$cache/fuse3.tar.xz" "$work/SOURCES"
git -c safe.directory="$top" -C "$top" archive --prefix="kvcachefs-$version/" HEAD | xz >"$work/SOURCES/kvcachefs-$version.tar.xz"
fuse_version=$(tar -xOf "$cache/fuse3.tar.xz" fuse3/debian/changelog | dpkg-parsechangelog -l - -S Version) || fuse_version=
options=(${fuse_version:+--define "fuse_version ${fuse_version%-*}"})
# There rpm's script that compresses manuals is one for bash, and is run by a shell that it fails in without a word.
[ ! -e /etc/debian_version ] || options+=(--nodeps --define '__brp_compress bash %{_rpmconfigdir}/brp-compress %{?_prefix}')
SOURCE_DATE_EPOCH=$(git -c safe.directory="$top" -C "$top" log -1 --format=%ct) \
  rpmbuild -ba "${options[@]}" --define "_topdir $work" "$spec" >"$output/build.log" 2>&1 ||
  { tail -n 40 "$output/build.log" | cut -c 1-300 >&2; exit 1; }
find "$work/RPMS" "$work/SRPMS" -name '*.rpm' -exec cp -t "$output" {} +
(cd "$output" && ls -l -- *.rpm)
if command -v rpmlint >/dev/null; then rpmlint --rpmlintrc "$top/packaging/rpm/rpmlintrc" "$spec" "$output"/*.rpm; fi
