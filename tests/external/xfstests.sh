#!/bin/bash
# Runs tests of xfstests on fresh mounts of the built daemon: TEST_DIR and SCRATCH_MNT are two pools. Exit 0 only if no test
# failed that xfstests.expected does not name with its reason; those that are named and passed are listed, too.
#
# usage: tests/external/xfstests.sh TREE [MODE] [ARGUMENT-OF-CHECK...]; default: -g generic/quick
# TREE is a built xfstests; MODE is one of fresh_mount.sh's (`tmpfs`: a native tmpfs, to compare). Needs root, and what
# xfstests needs of the machine. The users it wants are made in a mount namespace of this script alone.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

[ $# -ge 1 ] || { echo "usage: xfstests.sh TREE [MODE] [ARGUMENT-OF-CHECK...]" >&2; exit 2; }
if [ "${KVCACHEFS_OWN_NAMESPACE:-}" != 1 ]; then
  KVCACHEFS_OWN_NAMESPACE=1 exec unshare --mount --propagation private "${BASH_SOURCE[0]}" "$@"
fi
. "$here/fresh_mount.sh"
tree=$(cd "$1" && pwd) || exit 2
mode=${2:-passthrough}
shift $(($# > 1 ? 2 : 1))
[ $# -gt 0 ] || set -- -g generic/quick
[ -x "$tree/ltp/fsstress" ] || { echo "xfstests.sh: $tree is not built" >&2; exit 2; }

# What xfstests asks mount, umount, df and findmnt for by a device's name: here a device is a pool, a mount of it a bind.
write_tools() {
  local tool
  mkdir "$work/bin"
  for tool in mount umount df findmnt; do
    printf '#!/bin/bash\nreadonly real=%q test_dir=%q scratch_dir=%q pools=%q\n' \
      "$(type -P "$tool")" "$work/test" "$work/scratch" "$work/mnt" >"$work/bin/$tool"
    cat >>"$work/bin/$tool" <<'TEXT'
directory_of() { case $1 in kv-test) echo "$test_dir" ;; kv-scratch) echo "$scratch_dir" ;; *) echo "$1" ;; esac; }
TEXT
  done
  cat >>"$work/bin/mount" <<'TEXT'
[ $# -gt 0 ] || exec "$real"
options=() words=() type=
while [ $# -gt 0 ]; do
  case $1 in
    -t) type=$2; shift ;;
    -o) options+=("$2"); shift ;;
    -o*) options+=("${1#-o}") ;;
    *) words+=("$1") ;;
  esac
  shift
done
joined=$(IFS=,; echo "${options[*]}")
last=$(directory_of "${words[-1]:-}")
case $type:${words[0]:-}:,$joined, in
  fuse*:kv-test:*) "$real" --bind "$pools/p" "$last" ;;
  fuse*:kv-scratch:*) "$real" --bind "$pools/scratch" "$last" ;;
  :*:*,remount,*) [ "$last" != "$test_dir" ] && [ "$last" != "$scratch_dir" ] || joined=$joined,bind
                  exec "$real" -o "$joined" "$last" ;;
  *) exec "$real" ${type:+-t "$type"} ${joined:+-o "$joined"} "${words[@]}" ;;
esac || exit
[ -z "$joined" ] || exec "$real" -o "remount,bind,$joined" "$last"
TEXT
  cat >>"$work/bin/umount" <<'TEXT'
words=()
for word in "$@"; do words+=("$(directory_of "$word")"); done
exec "$real" "${words[@]}"
TEXT
  cat >>"$work/bin/df" <<'TEXT'
words=()
for word in "$@"; do words+=("$(directory_of "$word")"); done
# With -a, because without it the output lacks what is bound from elsewhere.
"$real" -a "${words[@]}" | sed -E "/ ${test_dir//\//\\/}\$/{s/^kvcachefs /kv-test /;s/fuse\\.kvcachefs/fuse/};
  / ${scratch_dir//\//\\/}\$/{s/^kvcachefs /kv-scratch /;s/fuse\\.kvcachefs/fuse/}"
exit "${PIPESTATUS[0]}"
TEXT
  cat >>"$work/bin/findmnt" <<'TEXT'
words=() name=
for word in "$@"; do
  case $word in
    -S) ;;
    kv-test | kv-scratch) name=$word; words+=(-M "$(directory_of "$word")") ;;
    *) [ "${previous:-}" != -S ] || words+=(-S); words+=("$word") ;;
  esac
  previous=$word
done
"$real" "${words[@]}" | sed -E "s/^kvcachefs(\\[[^]]*\\])? /${name:-kvcachefs} /; s/ kvcachefs(\\[[^]]*\\])?\$/ ${name:-kvcachefs}/"
exit "${PIPESTATUS[0]}"
TEXT
  chmod 755 "$work"/bin/*
}

# The users and groups that its tests look for, seen here alone.
add_users() {
  local name id=31000
  cp -p /etc/passwd /etc/group /etc/shadow "$work"
  for name in fsgqa fsgqa2 123456-fsgqa; do
    id=$((id + 1))
    echo "$name:x:$id:$id::/tmp:/bin/bash" >>"$work/passwd"
    echo "$name:x:$id:" >>"$work/group"
    echo "$name:*:19000:0:99999:7:::" >>"$work/shadow"
  done
  mount --bind "$work/passwd" /etc/passwd
  mount --bind "$work/group" /etc/group
  mount --bind "$work/shadow" /etc/shadow
}

write_config() {
  echo "export TEST_DEV=kv-test TEST_DIR=$work/test SCRATCH_DEV=kv-scratch SCRATCH_MNT=$work/scratch"
  echo "export RESULT_BASE=$results"
  if [ "$mode" = tmpfs ]; then
    # Memory bounds what is written, as a pool's size does.
    echo "export FSTYP=tmpfs MOUNT_OPTIONS='-o size=$size' TEST_FS_MOUNT_OPTS='-o size=$size'"
  else
    echo "export FSTYP=fuse FUSE_SUBTYP=.kvcachefs"
  fi
}

# Names of tests, sorted, out of a line of its summary: what("Failures:").
named_in_summary() {
  sed -n "s/^$1 //p" "$work/output" | tr ' ' '\n' | grep '^[a-z]*/[0-9]' | sort -u
}

size=${KVCACHEFS_XFSTESTS_SIZE:-2G}
fresh_mount "$mode" "$size" scratch
[ "$mode" != tmpfs ] || umount "$mount_pool" "$work/mnt/scratch"
mkdir -p "$work/test" "$work/scratch"
results=${KVCACHEFS_XFSTESTS_RESULTS:-$work/results}
mkdir -p "$results"
write_tools
add_users
write_config >"$work/config"

cd "$tree" || exit 2
PATH=$work/bin:$PATH HOST_OPTIONS=$work/config ./check "$@" 2>&1 </dev/null | tee "$work/output"
mount | grep -q " $work/test " && umount "$work/test"
mount | grep -q " $work/scratch " && umount "$work/scratch"

named_in_summary 'Failures:' >"$work/failed"
named_in_summary 'Ran:' >"$work/ran"
named_in_summary 'Not run:' >"$work/not_run"
expected_failures "$here/xfstests.expected" "$mode" >"$work/expected"
unexpected=$(comm -23 "$work/failed" "$work/expected")
passed_all_the_same=$(comm -23 <(comm -12 "$work/ran" "$work/expected") <(sort -u "$work/failed" "$work/not_run"))
[ -z "$passed_all_the_same" ] || echo "expected to fail, and passed:" $passed_all_the_same
[ -z "$unexpected" ] || echo "failed and not expected to:" $unexpected
not_run=$(wc -l <"$work/not_run") failed=$(wc -l <"$work/failed") ran=$(comm -23 "$work/ran" "$work/not_run" | wc -l)
echo "xfstests ($mode): $ran ran, $failed failed, $((failed - $(grep -c . <<<"$unexpected"))) of them expected; $not_run not run"
[ "$ran" -gt 0 ] && [ -z "$unexpected" ]
