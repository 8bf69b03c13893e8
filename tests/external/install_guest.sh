#!/bin/bash
# What an administrator does who has README alone: on a fresh Debian 13 with systemd as init and a second disk he runs the three
# lines of its install section, with the options of its disk tier in the line of fstab, stores files, and reboots; then the pool is
# there with what was on its disk. The lines are taken from README, with sizes that fit the guest. It runs
# without KVM, so any machine will do: 5 minutes of a processor. Needs root, 4 GiB of disk, 2 GiB of memory, debootstrap and
# qemu-system-x86 (packaging/setup.sh --guest --package).
#
# usage: tests/external/install_guest.sh PACKAGE.deb
set -euo pipefail
package=$(realpath "${1:?usage: tests/external/install_guest.sh PACKAGE.deb}")
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d /var/tmp/kv-install-guest-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM

# The first block of code in README's section "Install", and the options that its section on disks has for a line of fstab.
awk '/^## / { section = $0 } section == "## Install" && /^    / { print substr($0, 5); seen = 1 } seen && /^$/ { exit }' \
  "$top/README.md" | sed 's/sudo //g' >"$work/lines"
tier=$(grep -o 'spill=[^` ]*,x-systemd[^` ]*' "$top/README.md")
sed -i "s|size=64G,|size=256M,${tier/spill_size=500G/spill_size=512M},|" "$work/lines"
if [ "$(wc -l <"$work/lines")" != 3 ] || ! grep -q 'size=256M,spill=/data/.*,spill_size=512M,' "$work/lines"; then
  echo 'install_guest.sh: README has no three lines to install, or other ones than this test knows:' >&2
  cat "$work/lines" >&2
  exit 1
fi

# The guest has no network: what the package needs of Debian is in its image, as it would be on the mirror.
cp "$package" "$work/kvcachefs_guest.deb"
cat >"$work/make-image" <<'TEXT'
set -eu
apt-get update -q >/dev/null
apt-get install -q -y --no-install-recommends /work/kvcachefs_guest.deb systemd-sysv linux-image-cloud-amd64 initramfs-tools e2fsprogs udev kmod zstd >/dev/null
dpkg --purge kvcachefs >/dev/null
printf '/dev/vda / ext4 defaults 0 1\n/dev/vdb /data ext4 nofail 0 2\n' >/etc/fstab
mkdir -p /data /root/package
cp /work/kvcachefs_guest.deb /root/package/
echo 'APT::Get::Assume-Yes "true"; quiet "1";' >/etc/apt/apt.conf.d/90administrator
echo guest >/etc/hostname
cp /work/administrator /work/lines /root/
cat >/etc/systemd/system/administrator.service <<'UNIT'
[Unit]
Description=what the administrator does
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /root/administrator
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
[Install]
WantedBy=default.target
UNIT
systemctl enable -q administrator
systemctl set-default -q multi-user.target
# A login prompt would hang up the line on what the administrator says.
systemctl mask -q serial-getty@ttyS0
cp /boot/vmlinuz-* /work/vmlinuz
cp /boot/initrd.img-* /work/initrd
mkdir /work/tree
tar --one-file-system -C / --exclude=./work --exclude=./var/cache/apt/archives --exclude='./var/lib/apt/lists/*' --exclude=./boot -cf - . | tar -C /work/tree -xf -
# What is mounted here is left out with its mount point.
mkdir -p /work/tree/{boot,dev,proc,run,sys,tmp} /work/tree/var/cache/apt/archives/partial
chmod 1777 /work/tree/tmp
mke2fs -q -t ext4 -d /work/tree /work/root.img 2600M
rm -rf /work/tree
TEXT
cat >"$work/administrator" <<'TEXT'
say() { echo "install_guest: $*"; }
# expect WHAT COMMAND...
expect() { what=$1; shift; if "$@"; then say "$what: held"; else say "$what: DID NOT HOLD"; fi; }
comes() { for try in $(seq 240); do "$@" >/dev/null && return; sleep 0.5; done; return 1; }
shows() { [ "$(awk -v n=$1 '$1 == n { print $2 }' /mnt/llama/.pool/stats)" = "$2" ]; }
sums() { (cd /mnt/llama && sha256sum entry-*); }
say "Linux $(uname -r), boot $([ -e /root/sums ] && echo 2 || echo 1)"
if [ ! -e /root/sums ]; then
  cd /root/package
  cat /root/lines
  expect 'the package is installed' sh -c "$(sed -n 1p /root/lines)"
  expect 'a line is added to fstab' sh -c "$(sed -n 2p /root/lines)"
  expect 'and mounted' sh -c "$(sed -n 3p /root/lines)"
  expect 'as what it is' findmnt -t fuse.kvcachefs /mnt/llama
  for i in 1 2 3 4 5 6 7 8; do head -c 4M /dev/urandom >/mnt/llama/entry-$i; done
  expect 'a setting is changed' kvcachefs set llama watermarks=80:90
  sync /mnt/llama/entry-*
  expect 'all is on the disk' comes shows dirty_entries 0
  sums >/root/sums
  expect 'the machine has what it needs' sh -c 'kvcachefsd --check-system=/data >/root/system'
  sync
  systemctl reboot
  exit
fi
# With nofail the boot does not wait for either.
expect 'the disk is mounted' comes findmnt /data
expect 'the pool is mounted' comes findmnt -t fuse.kvcachefs /mnt/llama
expect 'its spill file is on the disk' sh -c '[ "$(stat -c %d /data/llama.spill)" = "$(stat -c %d /data)" ] && [ "$(stat -c %d /data)" != "$(stat -c %d /)" ]'
expect 'its entries are back' comes shows disk_restoring 0
expect 'and whole' sh -c 'cd /mnt/llama && sha256sum --quiet -c /root/sums'
expect 'what was set is there' grep -q '^watermarks set 80:90$' /mnt/llama/.pool/settings
expect 'no unit has failed' sh -c '[ -z "$(systemctl list-units --failed --no-legend)" ]'
expect 'the daemon is in its slice' sh -c 'grep -q kvcachefs.slice /proc/$(awk "\$1 == \"pid\" { print \$2 }" /run/kvcachefs/mount/.kvcachefs/stats)/cgroup'
expect 'the package goes' apt-get purge -q -y kvcachefs
say 'END'
systemctl poweroff
TEXT
"$top/packaging/clean-root.sh" --bind "$work:/work" trixie bash /work/make-image
truncate --size 1G "$work/data.img"
mke2fs -q -t ext4 "$work/data.img"
# no_timer_check: on busy processors a virtual timer may come too late for the check, and the guest would not boot.
timeout 1500 qemu-system-x86_64 -m 2048 -smp 2 -display none -monitor none -serial "file:$work/console" \
  -kernel "$work/vmlinuz" -initrd "$work/initrd" -append 'root=/dev/vda rw console=ttyS0 quiet no_timer_check systemd.show_status=no' \
  -drive "file=$work/root.img,if=virtio,format=raw,cache=unsafe" -drive "file=$work/data.img,if=virtio,format=raw,cache=unsafe" \
  -net none || true
tr -d '\r' <"$work/console" | grep -a 'install_guest: ' || true
held=$(grep -ac 'install_guest: .*: held' "$work/console" || true)
if ! grep -aq 'install_guest: END' "$work/console" || grep -aq 'DID NOT HOLD' "$work/console" || [ "$held" -lt 15 ]; then
  echo "install_guest.sh: not all held; the end of the guest's console:" >&2
  tail -n 60 "$work/console" >&2
  exit 1
fi
echo "install_guest.sh: $held checks held"
