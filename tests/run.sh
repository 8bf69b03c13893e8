#!/bin/bash
# Sets the machine up, builds, and runs the tests. Must be root: the tests mount. Exit 0 only if every test passed
# and nothing was left mounted or running.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--preset P] [--target T]... [--no-setup] [--build-only] [-- CTEST-ARGUMENTS...]
  --preset P   dev (default), release, asan, tsan or clang
  --target T   build only this target (may be repeated); default: everything
  --no-setup   do not run packaging/setup.sh first
  --build-only  run no test
From nothing many source files are compiled as one, in half of the time; a build folder that is there stays as it is.
KVCACHEFS_UNITY=ON or OFF says which.
A capability that the machine lacks is listed as skipped with its reason; KVCACHEFS_REQUIRE=all (CI=... means the
same) makes it a failure.
TEXT
}

preset=dev
setup=yes
tests=yes
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --target) targets+=(--target "${2:?--target needs a name}"); shift 2 ;;
    --no-setup) setup=no; shift ;;
    --build-only) tests=no; shift ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build=$root/build/$preset
[ "$(id -u)" = 0 ] || { echo "tests/run.sh: must run as root: the tests mount file systems" >&2; exit 1; }
if [ -n "${CI:-}" ]; then export KVCACHEFS_REQUIRE=all; fi

# phase NAME COMMAND...: runs it and says how long it took.
phase() {
  local name=$1 start=$SECONDS status=0
  shift
  "$@" || status=$?
  echo "== $preset: $name: $((SECONDS - start)) s$([ $status = 0 ] || echo ", FAILED")"
  return $status
}

# The transport over io_uring is off in the kernel until root switches it on; it is as before when we leave.
uring=/sys/module/fuse/parameters/enable_uring
enable_uring() {
  [ -e "$uring" ] || modprobe fuse 2>/dev/null || true
  [ -w "$uring" ] || return 0
  uring_before=$(cat "$uring")
  [ "$uring_before" = Y ] || echo Y >"$uring"
}
restore_uring() {
  if [ "${uring_before:-Y}" != Y ]; then echo "$uring_before" >"$uring"; fi
}

# Mounts of kvcachefs and daemons out of this build, one a line.
leftovers() {
  awk '{ for (i = 7; i <= NF; i++) if ($i == "-") break
         if ($(i + 1) == "fuse.kvcachefs" || $(i + 2) == "kvcachefs") print "mount " $5 " (" $(i + 1) ")" }' \
    /proc/self/mountinfo
  local exe
  for exe in /proc/[0-9]*/exe; do
    case $(readlink "$exe" 2>/dev/null) in
      "$build"/bin/kvcachefsd*) exe=${exe%/exe}; echo "daemon ${exe#/proc/}" ;;
    esac
  done
}

# What is there after the run and was not before; unmounting may need a moment.
check_leftovers() {
  local new deadline=$((SECONDS + 10))
  while new=$(comm -13 <(sort <<<"$before") <(leftovers | sort)) && [ -n "$new" ]; do
    if [ $SECONDS -ge $deadline ]; then
      echo "tests/run.sh: left behind by the tests:" >&2
      echo "$new" >&2
      return 1
    fi
    sleep 0.2
  done
}

print_skips() {
  local log=$build/Testing/Temporary/LastTest.log
  [ -f "$log" ] || return 0
  awk '/^[0-9]+\/[0-9]+ Test: / { program = $3 }
       /: Skipped$/ { getline reason; count[program ": " reason]++ }
       END { for (line in count) print "skipped " count[line] " of " line }' "$log" | sort
}

configure() {
  local unity=${KVCACHEFS_UNITY:-}
  if [ ! -f "$build/build.ninja" ]; then
    unity=${unity:-ON}
    if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}; fi
  fi
  cmake --preset "$preset" ${unity:+"-DCMAKE_UNITY_BUILD=$unity"} >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

# Tests on mounts wait more than they compute, half of the time and more.
run_ctest() {
  local wrapper=()
  # ThreadSanitizer has its difficulties with the address layout of newer kernels.
  if [ "$preset" = tsan ]; then wrapper=(setarch -R); fi
  "${wrapper[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error -j$((2 * $(nproc))) "$@"
}

if [ "$setup" = yes ]; then
  setup_options=()
  case $preset in clang | asan | tsan) setup_options=(--clang) ;; esac
  phase setup packaging/setup.sh "${setup_options[@]}"
fi
log=$(mktemp /tmp/kvcachefs-run.XXXXXX)
trap 'restore_uring; rm -f "$log"' EXIT
trap 'exit 1' INT TERM
phase configure configure
phase build cmake --build "$build" -j"$(nproc)" "${targets[@]}"
[ "$tests" = yes ] || exit 0
enable_uring
before=$(leftovers)
status=0
phase tests run_ctest "$@" || status=1
print_skips
check_leftovers || status=1
exit $status
