"""What the tests of container runtimes share: a root folder with busybox, and ckpt in criu's place."""
import os
import re
import shutil
import subprocess

from app import Failure, find, install, wait_until
from harness import CKPT, all_children, exists_unreaped, read_text

# Counts in a variable, one of a tmpfs and, now and then, a file of its root, and checks all three against each other. A root that was unpacked
# from an archive has another file there, and ckpt refuses a process that was just writing to it: seldom, then.
COUNTER = """
i=0
while [ "$(cat /dev/shm/count 2>/dev/null || echo 0)" = $i ] && [ "$(cat /count 2>/dev/null || echo 0)" = $((i / 20 * 20)) ]; do
  i=$((i + 1)); echo $i >/dev/shm/count; [ $((i % 20)) != 0 ] || echo $i >/count; echo "round $i"; sleep 0.02
done
echo "WRONG at $i"
sleep 1000
"""


def busybox_root(folder):
    """A root folder that has a shell; returns its path."""
    install(busybox="busybox-static")
    root = os.path.join(folder, "rootfs")
    for name in ("bin", "proc", "sys", "dev", "tmp", "etc", "run"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    shutil.copy(find("busybox"), os.path.join(root, "bin/busybox"))
    for name in ("sh", "cat", "sleep", "echo", "ls", "mount", "hostname", "ps", "stty"):
        os.symlink("busybox", os.path.join(root, "bin", name))
    with open(os.path.join(root, "bin/counter"), "w", encoding="ascii") as script:
        script.write("#!/bin/sh\n" + COUNTER)
    os.chmod(os.path.join(root, "bin/counter"), 0o755)
    return root


def environment(folder):
    """In which `criu` is ckpt."""
    place = os.path.join(folder, "place-of-criu")
    os.makedirs(place, exist_ok=True)
    if not os.path.islink(os.path.join(place, "criu")):
        os.symlink(os.path.abspath(CKPT), os.path.join(place, "criu"))
    return {**os.environ, "PATH": f"{place}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def wait_reaping(popen):
    """As the monitor of containers does, which is the nearest subreaper: a pid namespace ends once nothing in it is a zombie."""
    def ended():
        if popen.poll() is not None:
            return True
        for pid in all_children():
            if pid != popen.pid:
                exists_unreaped(pid)
        return False
    wait_until(ended, f"{popen.args[0]} takes too long", 120, 0.01)


def logs(folder):
    """What ckpt's logs below a folder say of errors."""
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".log"):
                found += [f"{name}: {line}" for line in read_text(os.path.join(where, name)).splitlines()[-8:]]
    return "\n".join(found)


def call(folder, *words, logs_in=None, **keywords):
    """Runs a command of the runtime's; a failure has ckpt's words on it."""
    with open(os.path.join(folder, "out"), "wb+") as out:
        done = subprocess.Popen([str(word) for word in words], env=environment(folder), stdin=subprocess.DEVNULL, stdout=out, stderr=out, **keywords)
        wait_reaping(done)
        out.seek(0)
        said = out.read().decode(errors="replace")
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, words))}: exit {done.returncode}: {said}\n{logs(logs_in or folder)}")
    return said


class Counted:
    """The rounds of a counter whose output is in a file, or in what `read` returns."""

    def __init__(self, read):
        self.read = read

    def rounds(self):
        text = self.read()
        if "WRONG" in text:
            raise Failure(f"the counter has found a difference: {text[-200:]}")
        found = re.findall(r"^round (\d+)\r?$", text, re.M)
        return int(found[-1]) if found else 0

    def goes_on(self, what):
        before = self.rounds()
        wait_until(lambda: self.rounds() > before + 5, f"{what}: the counter stands at {before}", 30, 0.05)
        return self.rounds()
