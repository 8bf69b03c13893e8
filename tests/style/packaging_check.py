#!/usr/bin/env python3
"""The packages have the documents that README.md names. What packaging/kubernetes and docs/engines.md start is a configuration that
kvcachefsd takes, with a volume for all that is to outlive the container, and starts over a mount that is dead. Shells accept what
the tool has them complete; those that are installed are asked. What packages do to mounts they do to all, whatever their paths. A
purge goes on where something cannot be removed, and names it.

usage: tests/style/packaging_check.py ROOT DIRECTORY-OF-PROGRAMS
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

root, programs = Path(sys.argv[1]), Path(sys.argv[2])
failures = []


def text_of(path):
    return (root / path).read_text()


def found(pattern, text, what):
    match = re.search(pattern, text, re.M)
    if not match:
        sys.exit(f"{what} is not found: this check no longer fits it")
    return match[1]


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


def program(path, script):
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(0o755)


def below(path, directories):
    return any(path == directory or path.startswith(directory + "/") for directory in directories)


def check_documents():
    named = {name for name in re.findall(r"[\w./-]+\.md\b", text_of("README.md")) if not name.startswith("tests/")}
    if len(named) < 4:
        sys.exit("README.md: hardly any documents found: this check no longer fits it")
    debian = set(text_of("packaging/debian/kvcachefs.docs").split())
    debian |= {line.split()[0] for line in text_of("packaging/debian/kvcachefs.install").splitlines()}
    rpm = {name for line in re.findall(r"^%doc (.*)$", text_of("packaging/rpm/kvcachefs.spec"), re.M) for name in line.split()}
    for name in sorted(named - debian):
        failures.append(f"packaging/debian: README.md names {name}, which the package has not")
    for name in sorted(named - rpm):
        # Those that %doc would give the name of another lie in a folder.
        if f"documents/{Path(name).parent}" not in rpm:
            failures.append(f"packaging/rpm: README.md names {name}, which the package has not")


def check_pod(scratch, state):
    pod = text_of("packaging/kubernetes/daemonset.yaml")
    configuration = textwrap.dedent(found(r"^  kvcachefs\.toml: \|\n((?: {4}.*\n|\n)+)", pod, "kvcachefs.toml in daemonset.yaml"))
    # The machine that runs this may have less memory than a node.
    (scratch / "kvcachefs.toml").write_text(re.sub(r'^size = ".*"', 'size = "64M"', configuration, flags=re.M))
    checked = run(programs / "kvcachefsd", "--check-config", "--config", scratch / "kvcachefs.toml", "-o", "state_dir=none")
    if checked.returncode != 0:
        failures.append(f"daemonset.yaml: {checked.stderr}")
    on_host = set(re.findall(r"- name: (\w+)\n +hostPath:", pod))
    volumes = [path for name, path in re.findall(r"- name: (\w+)\n +mountPath: (\S+)", pod) if name in on_host]
    mount_point = found(r'^mountpoint = "(.*)"', configuration, "the mount point in daemonset.yaml")
    for path in [state, mount_point, *re.findall(r'^spill = "(.*)"', configuration, re.M)]:
        if not below(path, volumes):
            failures.append(f"daemonset.yaml: {path} goes with the pod")
    # As in a dead mount, which is there and cannot be looked into, mkdir fails.
    start = found(r"^ +- (mkdir .*)$", pod, "the command of daemonset.yaml")
    if mount_point not in start:
        failures.append(f"daemonset.yaml: the command makes another directory than {mount_point}")
    (scratch / "dead").write_text("")
    program(scratch / "kvcachefsd", 'echo "started $*"')
    started = run("bash", "-c", start.replace(mount_point, str(scratch / "dead")), env={"PATH": f"{scratch}:{os.environ['PATH']}"})
    if started.stdout != "started --config /etc/kvcachefs/kvcachefs.toml\n":
        failures.append(f"daemonset.yaml: over a dead mount no daemon is started: {started.stderr}")


def check_docker(state):
    command = found(r"^ +docker run -d --name kvcachefs ((?:.*\\\n)+.*)$", text_of("docs/engines.md"), "the daemon in docs/engines.md")
    volumes = re.findall(r"-v [^:\s]+:([^:\s]+)", command)
    for path in [state, *re.findall(r"spill=([^,\s]+)", command)]:
        if not below(path, volumes):
            failures.append(f"docs/engines.md: {path} goes with the container")


def check_completion(scratch, shell, check, ask):
    """The script's syntax; and as pools it has the names in the mount, and none if nothing is mounted."""
    script = scratch / f"completion.{shell}"
    script.write_text(run(programs / "kvcachefs", "completion", shell, check=True).stdout)
    if not shutil.which(shell):
        return
    syntax = run(shell, check, script)
    if syntax.returncode != 0 or syntax.stderr:
        failures.append(f"completion {shell}: {syntax.stderr}")
    for directory in ("here", "mount/a-pool"):
        (scratch / directory).mkdir(parents=True, exist_ok=True)
    (scratch / "here/no-pool").write_text("")
    # Not of a mount that another user than root has made.
    for answer, pools in (("exit 1", []), (f'case $* in *"-O user_id=0"*) echo {scratch}/mount ;; esac', ["a-pool"])):
        program(scratch / "findmnt", answer)
        asked = run(shell, "-c", ask, cwd=scratch / "here",
                    env={"PATH": f"{scratch}:{os.environ['PATH']}", "HOME": str(scratch), "SCRIPT": str(script)})
        if asked.stdout.split() != pools:
            failures.append(f"completion {shell}: has {asked.stdout.split()} for pools, not {pools}: {asked.stderr}")


def check_package_mounts(scratch):
    """As the kernel has them in mountinfo, with octal digits after what is escaped."""
    paths = ["/mnt/kv", "/mnt/kv 1", "/mnt/a\t2\\3\\\\047 x", "/mnt/b\n\n"]
    lines = ["1 0 0:1 / / rw - ext4 /dev/vda rw"]
    for device, path in enumerate(paths, 2):
        escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in path)
        lines.append(f"{device} 1 0:{device} / {escaped} rw shared:{device} - fuse.kvcachefs kvcachefs rw,user_id=0")
    # Any user mounts such a thing with fusermount3, and calls it what he likes.
    lines.append("9 1 0:9 / /home/user/kv rw - fuse.kvcachefs user_id=0 rw,user_id=1000,group_id=0")
    # A pool's directory that is not mounted any more, and takes no writes.
    (scratch / "sealed").mkdir(mode=0)
    lines.append(f"10 1 0:10 /p {scratch}/sealed rw - fuse.kvcachefs kvcachefs rw,user_id=0")
    (scratch / "mountinfo").write_text("\n".join(lines) + "\n")
    program(scratch / "kvcachefs", 'printf "%s\\0" "$2" >>asked')
    program(scratch / "umount", 'printf "%s\\0" "$1" >>asked')
    # Each is stopped and then unmounted.
    for order, asked in (("upgrade", paths), ("stop", [path for path in paths for _ in range(2)])):
        (scratch / "asked").write_text("")
        done = run("sh", root.resolve() / "packaging/package-mounts.sh", order, cwd=scratch,
                   env={"PATH": f"{scratch}:{os.environ['PATH']}", "KVCACHEFS_MOUNTINFO": str(scratch / "mountinfo")})
        if (were := (scratch / "asked").read_text().split("\0")[:-1]) != asked:
            failures.append(f"package-mounts {order}: asked {were}, not {asked}")
        if (f"{scratch}/sealed takes no writes" in done.stderr) != (order == "stop"):
            failures.append(f"package-mounts {order}: of a mount point that takes no writes says {done.stderr}")


def check_purge(scratch, state):
    """As where a file of a catalog is a mount point, or immutable."""
    there = scratch / "state"
    for catalog in ("busy", "removed"):
        (there / catalog).mkdir(parents=True)
        for name in ("lock", "data.mdb"):
            (there / catalog / name).write_text("")
    program(scratch / "rm", 'case $* in *busy*) exit 1 ;; esac; exec /bin/rm "$@"')
    postrm = text_of("packaging/debian/kvcachefs.postrm").replace(state, str(there)).replace("/run/kvcachefs", str(scratch / "run"))
    (scratch / "postrm").write_text(postrm)
    purged = run("sh", scratch / "postrm", "purge", env={"PATH": f"{scratch}:{os.environ['PATH']}"})
    stays = f"kvcachefs: {there}/busy stays\n"
    if purged.returncode != 0 or stays not in purged.stderr or [path.name for path in there.iterdir()] != ["busy"]:
        failures.append(f"postrm purge: status {purged.returncode}, {list(there.iterdir())}: {purged.stderr}")
    (scratch / "rm").unlink()


with tempfile.TemporaryDirectory() as directory:
    scratch = Path(directory)
    state = found(r'state_dir = "(.*)";', text_of("daemon/config.h"), "the state directory in daemon/config.h")
    check_documents()
    check_pod(scratch, state)
    check_docker(state)
    check_package_mounts(scratch)
    check_purge(scratch, state)
    check_completion(scratch, "bash", "-n",
                     'source "$SCRIPT"; COMP_WORDS=(kvcachefs status ""); COMP_CWORD=2; _kvcachefs; echo "${COMPREPLY[@]}"')
    check_completion(scratch, "zsh", "-n",
                     'compadd() { shift; print -r -- "$@" }; words=(kvcachefs status ""); CURRENT=3; source "$SCRIPT"')
    check_completion(scratch, "fish", "--no-execute", 'source "$SCRIPT"; complete -C "kvcachefs status "')
for failure in failures:
    print(failure)
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
