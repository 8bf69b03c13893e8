#!/bin/sh
# What a package does to the kvcachefs mounts of the machine, as far as they are visible where it is installed. Called by
# the scripts of the packages, as root; always succeeds, and says on standard error what could not be done.
#
# usage: package-mounts upgrade   have each daemon go on as the program that is installed: no mount ends
#        package-mounts stop      before a removal: stop each daemon whose mount no process uses, unmount what it served, and
#                                 name the lines of /etc/fstab that nothing mounts from then on
# KVCACHEFS_MOUNTINFO names another /proc/self/mountinfo, for a test.
set -u
mountinfo=${KVCACHEFS_MOUNTINFO:-/proc/self/mountinfo}

hint() {
  echo "kvcachefs: $*" >&2
}

# A line for each daemon: the number of its file system, and where all of it is mounted. What is mounted elsewhere of it are
# binds of its pools. Only root's count: with fusermount3 any user mounts what says it is of this type.
served() {
  awk '{ for (i = 7; $i != "-"; i++) continue
    if ($(i + 1) == "fuse.kvcachefs" && ("," $NF ",") ~ /,user_id=0,/ && $4 == "/" && !seen[$3]++) print $3, $5 }' "$mountinfo"
}

# set_path ESCAPED: sets $path. A space is \040 there, which printf takes for another character if a digit follows, unlike \0040.
# The last character keeps the shell from dropping newlines at the end.
set_path() {
  path=$(printf '%b.' "$(printf '%s' "$1" | sed 's/\\/\\0/g')")
  path=${path%.}
}

# upgrades MOUNT WHICH: how many were done or refused, or why the last was; nothing if the mount does not answer.
upgrades() {
  timeout 10 sed -n "s/^$2 //p" "$1/.kvcachefs/upgrades" 2>/dev/null
}

grew() {
  [ -n "$1" ] && [ -n "$2" ] && [ "$1" -lt "$2" ]
}

upgrade() {
  served | while read -r _ escaped; do
    set_path "$escaped"
    mount=$path
    were_done=$(upgrades "$mount" 'done')
    were_refused=$(upgrades "$mount" refused)
    answer=$(timeout 60 kvcachefs --mount "$mount" upgrade 2>&1)
    case $? in
      0) continue ;;
      3) echo "$answer" >&2; continue ;;
      4 | 124) ;;  # the daemon was asked, and has not answered
      *) hint "$mount is served by the program from before, until it is mounted anew: $answer"; continue ;;
    esac
    if grew "$were_refused" "$(upgrades "$mount" refused)"; then
      hint "$mount is served by the program from before, until it is mounted anew: $(upgrades "$mount" reason)"
    elif ! grew "$were_done" "$(upgrades "$mount" 'done')"; then
      hint "$mount: not known yet whether it goes on as the new program; $mount/.kvcachefs/upgrades will say"
    fi
  done
}

# Where kvcachefs is mounted, or is to be, escaped as in mountinfo and fstab.
mount_points() {
  awk '{ for (i = 7; $i != "-"; i++) continue; if ($(i + 1) == "fuse.kvcachefs" && ("," $NF ",") ~ /,user_id=0,/) print $5 }' \
    "$mountinfo"
  # Of the service, which is stopped before.
  [ ! -r /etc/kvcachefs.toml ] || sed -n 's/^mountpoint *= *"\([^"\\]*\)".*/\1/p' /etc/kvcachefs.toml
  [ ! -r /etc/fstab ] || awk '$1 !~ /^#/ && $3 == "kvcachefs" { print $2 }' /etc/fstab
}

# name_sealed DIRECTORY: names it if nothing is mounted there any more and it takes no writes, as mount.kvcachefs and the service have
# left it (seal= in kvcachefsd(8)).
name_sealed() {
  if mountpoint -q "$1"; then return; fi
  if lsattr -d -- "$1" 2>/dev/null | grep -q '^[^ ]*i'; then
    hint "$1 takes no writes and stays: \`chattr -i\` of it, before it is removed or used without a mount"
  elif [ "$(stat -c %a -- "$1" 2>/dev/null)" = 0 ]; then
    hint "$1 takes no writes and stays: \`chmod 755\` of it, before it is used without a mount"
  fi
}

unmount_binds() {
  awk -v device="$1" '$3 == device { print $5 }' "$mountinfo" | tac |
    while read -r escaped; do
      set_path "$escaped"
      umount "$path"
    done
}

# A daemon that is stopped first writes what its disk tiers are to keep.
stop() {
  were_there=$(mount_points | sort -u)
  served | while read -r device escaped; do
    set_path "$escaped"
    mount=$path
    if answer=$(timeout 150 kvcachefs --mount "$mount" stop 2>&1); then
      unmount_binds "$device"
    else
      hint "goes on until it is unmounted: $answer"
    fi
  done
  printf '%s\n' "$were_there" | while read -r escaped; do
    set_path "$escaped"
    name_sealed "$path"
  done
}

# systemd goes on with a start where a mount fails that has one of these options.
name_lines_of_fstab() {
  [ -r /etc/fstab ] || return
  awk '$1 !~ /^#/ && $3 == "kvcachefs" {
    if (!any++) print "kvcachefs: without the package nothing mounts these lines of /etc/fstab; one without nofail stops the next boot:"
    print "kvcachefs:   " $0 (("," $4 ",") ~ /,(nofail|noauto|_netdev|x-systemd.automount),/ ? "" : "  <- stops it")
  }' /etc/fstab >&2
}

case ${1:-} in
  upgrade) upgrade ;;
  stop) stop; name_lines_of_fstab ;;
  *) sed -n '/^# usage/,/from then on$/s/^# //p' "$0" >&2; exit 2 ;;
esac
exit 0
