#!/bin/bash
# The Debian package on a fresh root of each release (packaging/clean-root.sh): install, mount, store and read, an upgrade, a
# downgrade and a refused one while clients are at it, remove, purge. Prints a line for each check (package_checks.sh has them), and
# fails when one fails. Builds the package of HEAD twice, the second time with a higher version.
#
# usage: tests/external/package.sh [--release RELEASE]... [--cache DIR] [--built OLD NEW] [--here]      as root
#   --built OLD NEW  directories of two builds (packaging/build-deb.sh --output), instead of building
#   --here           one package, built on this machine for its own release, with its lintian, and of the checks those without a service
#                    manager: installed, a pool of fstab, a file stored and read, removed, purged
# Needs debootstrap (packaging/setup.sh --package, or --deb for --here) and /dev/fuse.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kvcachefs
releases=()
old=
new=
here=no

while [ $# -gt 0 ]; do
  case $1 in
    --release) releases+=("${2:?}"); shift 2 ;;
    --cache) cache=${2:?}; shift 2 ;;
    --built) old=$(cd "${2:?}" && pwd); new=$(cd "${3:?}" && pwd); shift 3 ;;
    --here) here=yes; shift ;;
    *) sed -n '/^# usage/,/^# Needs/s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
if [ $here = yes ]; then releases=("$(. /etc/os-release && echo "$VERSION_CODENAME")"); fi
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)

work=$(mktemp -d /var/tmp/kvcachefs-package.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM

build() {
  local options=()
  for release in "${releases[@]}"; do options+=(--release "$release"); done
  "$root/packaging/build-deb.sh" --cache "$cache" "${options[@]}" "$@"
}

if [ -z "$old" ] && [ $here = yes ]; then
  old=$work/old
  new=$old
  "$root/packaging/build-deb.sh" --here --lintian --cache "$cache" --output "$old"
elif [ -z "$old" ]; then
  old=$work/old
  new=$work/new
  build --output "$old" --version 0.1.0-1
  build --output "$new" --version 0.1.0-2
fi

failed=0
for release in "${releases[@]}"; do
  echo "=== $release"
  started=$SECONDS
  mkdir -p "$work/data-$release"
  "$root/packaging/clean-root.sh" --cache "$cache" --bind "$old/$release:/packages/old" --bind "$new/$release:/packages/new" \
    --bind "$root/tests/external:/checks" --bind "$root/packaging/debian/tests:/autopkgtest" \
    --bind "$work/data-$release:/data" "$release" \
    bash /checks/package_checks.sh $([ $here = no ] || echo without-service-manager) || failed=1
  echo "package.sh: $release took $((SECONDS - started)) s"
done
exit $failed
