#!/bin/bash
# Boots a guest of two memory nodes (1 GiB and one processor each) with a Debian kernel, mounts the built daemon in it
# and checks where entries come to lie: on the node of the process that stores them, also for what another node's
# process writes on; on the other node once theirs is full; back on their own node when they were cold and another
# node's process reads them; in huge pages in all cases. numa_guest.cc has the checks:
# the truth is move_pages(2) and smaps of a mapping of each entry. Prints each check and `N of M checks`; exit 0 only
# if all held, 2 for wrong use.
#
# The guest runs without KVM, so any machine will do: a run takes one to a few minutes, most of it the writing of 2 GiB.
# Needs root only for apt's download, 3 GiB of memory, g++ and the packages qemu-system-x86, busybox-static and cpio.
# The kernel (a download of 110 MB) is fetched once, into build/numa-guest; the machine's package sources stay as
# they are. Nothing is mounted or loaded outside the guest.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/external/numa_guest.sh [--preset P] [--suite S] [--kernel FILE] [--io MODE]
  --preset P     the build whose daemon is checked: dev (default) or release; KVCACHEFSD names another one
  --suite S      the Debian suite whose newest kernel boots: trixie (default), bookworm-backports, forky, ...
  --kernel FILE  boot this kernel instead; it must have FUSE and loop devices built in
  --io MODE      passthrough (default) or daemon_io
  --timeout S    give the guest up after that many seconds (default 1200)
TEXT
}

fail() {
  echo "numa_guest: $*" >&2
  exit 1
}

preset=dev
suite=trixie
kernel=
io=passthrough
timeout_s=1200
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --kernel) kernel=${2:?--kernel needs a file}; shift 2 ;;
    --io) io=${2:?--io needs a mode}; shift 2 ;;
    --timeout) timeout_s=${2:?--timeout needs seconds}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
case $io in
  passthrough) daemon_options='' reported=passthrough ;;
  daemon_io) daemon_options='-o no_passthrough' reported=daemon ;;
  *) usage >&2; exit 2 ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
daemon=${KVCACHEFSD:-$root/build/$preset/bin/kvcachefsd}
cache=$root/build/numa-guest/$suite
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# As packaging/setup.sh has it: a mirror may lag, the signature is checked all the same.
readonly mirror_lag_seconds=$((90 * 24 * 3600))

for tool in qemu-system-x86_64 busybox cpio g++; do
  command -v "$tool" >/dev/null ||
    fail "needs $tool (packaging/setup.sh --guest)"
done
[ -x "$daemon" ] || fail "$daemon is not built"

work=$(mktemp -d /tmp/kvcachefs-guest.XXXXXX)
guest=
stop_guest() {
  [ -z "$guest" ] || kill "$guest" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap stop_guest EXIT
trap 'exit 130' INT TERM

# apt with sources, lists and cache of its own under $work; of the machine's it reads the options (proxies) only.
private_apt() {
  (cd "$work/apt" && APT_CONFIG=$work/apt/apt.conf "$@")
}

# The packages linux-{$2}-VERSION that package $1 depends on.
depends_of() {
  private_apt apt-cache depends "$1" | awk -v kind="^linux-($2)-[0-9]" '$1 == "Depends:" && $2 ~ kind { print $2 }'
}

# Leaves $cache/vmlinuz, and $cache/fuse.ko and loop.ko where they are modules.
fetch_kernel() {
  local uri image package kernel_file module name
  uri=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
  [ -n "$uri" ] || fail "apt knows no Debian mirror to fetch a kernel from (apt-get update may help)"
  chmod 755 "$work"
  mkdir -p "$work"/apt/{none,lists/partial,cache/archives/partial,tree}
  if [ "$(id -u)" = 0 ] && id _apt >/dev/null 2>&1; then chown -R _apt "$work/apt"; fi
  echo "deb [arch=amd64 signed-by=$keyring valid-until-min=$mirror_lag_seconds] $uri $suite main" \
    >"$work/apt/sources.list"
  cat >"$work/apt/apt.conf" <<TEXT
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "$work/apt/none";
Dir::Etc::preferences "$work/apt/preferences";
Dir::Etc::preferencesparts "$work/apt/none";
Dir::State::lists "$work/apt/lists";
Dir::Cache "$work/apt/cache";
TEXT
  private_apt apt-get update -q -o APT::Update::Error-Mode=any >&2 || fail "$suite of $uri does not answer"
  # linux-image-amd64 only names the newest one, which newer suites split in several packages.
  image=$(depends_of linux-image-amd64 'image')
  [ -n "$image" ] || fail "$suite has no linux-image-amd64"
  # shellcheck disable=SC2046
  private_apt apt-get download -q "$image" $(depends_of "$image" 'binary|modules') >&2 ||
    fail "fetching $image failed"
  for package in "$work"/apt/linux-*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -C "$work/apt/tree" -xf - --wildcards \
      '*/vmlinuz*' '*/kernel/fs/fuse/*' '*/kernel/drivers/block/loop.ko*' 2>/dev/null || true  # one has neither
  done
  kernel_file=$(find "$work/apt/tree" -name 'vmlinuz*' -type f)
  [ -f "$kernel_file" ] || fail "no kernel in $image"
  mkdir -p "$cache"
  rm -f "$cache"/*
  for name in fuse loop; do
    module=$(find "$work/apt/tree" -name "$name.ko*")
    case $module in
      '') ;;
      *.xz) xz -dc "$module" >"$cache/$name.ko" ;;
      *) cp "$module" "$cache/$name.ko" ;;
    esac
  done
  mv "$kernel_file" "$cache/vmlinuz"
  rm -rf "$work/apt"
}

make_initramfs() {
  local tree=$work/initramfs library module
  mkdir -p "$tree"/{bin,dev,proc,sys,run,tmp,mnt}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  if [ -z "$kernel" ]; then
    for module in "$cache"/*.ko; do [ ! -e "$module" ] || cp "$module" "$tree/"; done
  fi
  strip -o "$tree/bin/kvcachefsd" "$daemon"
  for library in $(ldd "$daemon" | grep -o '/[^ ]*'); do
    mkdir -p "$tree$(dirname "$library")"
    cp -L "$library" "$tree$library"
  done
  g++ -std=c++23 -O1 -static -Wall -Wextra -Wno-sign-conversion "$here/numa_guest.cc" -o "$tree/bin/check"
  strip "$tree/bin/check"
  cat >"$tree/init" <<TEXT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
# What is huge is to be so from the start, not gathered later.
echo 4294967295 >/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
for module in /*.ko; do [ ! -e \$module ] || insmod \$module; done
# serve POOL CHECK: a daemon, its checks, its end.
serve() {
  kvcachefsd --pool \$1 $daemon_options /mnt &
  daemon=\$!
  while kill -0 \$daemon && [ ! -e /mnt/.kvcachefs/version ]; do sleep 0.2; done
  check /mnt/p $reported \$2 && echo numa_guest: \$2 held
  kill \$daemon
  wait \$daemon
  echo numa_guest: \$2: daemon ended with \$?
}
dd if=/dev/zero of=/run/disk bs=1M count=192 2>/dev/null
losetup /dev/loop0 /run/disk
serve p:size=160M,spill=/dev/loop0,catalog=/run/catalog promotion
losetup -d /dev/loop0
rm -r /run/disk /run/catalog
serve p:size=1400M placement
poweroff -f
TEXT
  chmod 755 "$tree/init"
  (cd "$tree" && find . | cpio -o -H newc --quiet) >"$work/initramfs.cpio"
}

# -cpu max has an instruction for random numbers, which the kernel would otherwise wait for.
boot() {
  # A build beside it keeps its share, where the kernel groups tasks by session.
  setsid sh -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec "$@"' guest \
    timeout --kill-after=10 "$timeout_s" qemu-system-x86_64 \
    -machine pc -accel tcg,thread=multi -cpu max -smp 2 -m 2G -nodefaults -no-user-config -display none -no-reboot \
    -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
    -kernel "${kernel:-$cache/vmlinuz}" -initrd "$work/initramfs.cpio" -serial stdio \
    -append 'console=ttyS0 panic=-1 loglevel=4 nowatchdog mitigations=off rcupdate.rcu_cpu_stall_suppress=1' \
    </dev/null >"$work/console" 2>&1 &
  guest=$!
}

if [ -z "$kernel" ] && [ ! -e "$cache/loop.ko" ]; then fetch_kernel; fi
make_initramfs
boot
status=0
tail -n +1 --pid="$guest" -f "$work/console" | tr -d '\r' | grep --line-buffered -v '^$' || true
wait "$guest" || status=$?
guest=
[ "$status" = 0 ] || fail "the guest ended with $status (124: after $timeout_s s)"
for part in promotion placement; do
  grep -q "^numa_guest: $part held" "$work/console" || fail "$part did not hold"
  grep -q "^numa_guest: $part: daemon ended with 0" "$work/console" || fail "$part: the daemon did not end well"
done
