# shellcheck shell=bash disable=SC2154
# Sourced by the scripts that boot a Debian kernel in a guest: fetches that kernel once, packs an initramfs, boots it
# without KVM. The script sets $root, $daemon, $suite, $kernel, $timeout_s and $name first. Nothing is mounted or loaded
# outside the guest, and the machine's package sources stay as they are.
cache=$root/build/numa-guest/$suite
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# As packaging/setup.sh has it: a mirror may lag, the signature is checked all the same.
readonly mirror_lag_seconds=$((90 * 24 * 3600))

# A run that fails shows how its console ended: it may be read where no more than its last lines are left.
fail() {
  if [ -s "${work:-}/console" ]; then printf '%s: the console ended with\n' "$name" && tail -n 30 "$work/console"; fi >&2
  echo "$name: $*" >&2
  exit 1
}

need_tools() {
  local tool
  for tool in qemu-system-x86_64 busybox cpio g++; do
    command -v "$tool" >/dev/null || fail "needs $tool (packaging/setup.sh --guest)"
  done
  [ -x "$daemon" ] || fail "$daemon is not built"
}

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

# Leaves $work/initramfs with busybox, the daemon, the modules and, as bin/check, the program of that source.
make_tree() {
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
  g++ -std=c++23 -O1 -static -Wall -Wextra -Wno-sign-conversion "$1" -o "$tree/bin/check"
  strip "$tree/bin/check"
  # What each guest begins with.
  cat >"$tree/init" <<'TEXT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
for module in /*.ko; do [ ! -e $module ] || insmod $module; done
TEXT
  # say WORD...: returns once it has left the serial port's buffer, of which the end is lost when the guest is switched off, and
  # into the midst of which the kernel writes its messages.
  echo "say() { echo \"$name: \$*\"; stty -F /dev/console -echo; }" >>"$tree/init"
  chmod 755 "$tree/init"
}

# boot MEMORY OPTION...: shows the guest's console until it ends, and keeps it in $work/console.
# -cpu max has an instruction for random numbers, which the kernel would otherwise wait for. no_timer_check: a kernel that
# sees too few ticks of its timer while it boots panics, and without KVM a busy machine is all it takes.
# A kernel that patches its own code may meet the breakpoint that it does so with, where two processors are emulated: then it boots again.
boot() {
  boot_once "$@"
  if grep -q 'Oops: int3' "$work/console"; then
    echo "$name: the emulator ran what the kernel was about to replace: once more"
    boot_once "$@"
  fi
}

boot_once() {
  local memory=$1 status=0
  shift
  (cd "$work/initramfs" && find . | cpio -o -H newc --quiet) >"$work/initramfs.cpio"
  # A build beside it keeps its share, where the kernel groups tasks by session.
  : >"$work/console"
  setsid sh -c '{ echo "${KVCACHEFS_GUEST_NICE:-19}" >/proc/self/autogroup; } 2>/dev/null; exec "$@"' guest \
    timeout --kill-after=10 "$timeout_s" qemu-system-x86_64 \
    -machine pc -accel tcg,thread=multi -cpu max -smp 2 -m "$memory" -nodefaults -no-user-config -display none -no-reboot \
    "$@" -kernel "${kernel:-$cache/vmlinuz}" -initrd "$work/initramfs.cpio" -serial stdio \
    -append 'console=ttyS0 panic=-1 loglevel=4 nowatchdog mitigations=off no_timer_check rcupdate.rcu_cpu_stall_suppress=1' \
    </dev/null >"$work/console" 2>&1 &
  guest=$!
  tail -n +1 --pid="$guest" -f "$work/console" | tr -d '\r' | grep --line-buffered -v '^$' || true
  wait "$guest" || status=$?
  guest=
  if grep -q 'Oops: int3' "$work/console"; then return; fi
  [ "$status" = 0 ] || fail "the guest ended with $status (124: after $timeout_s s)"
}
