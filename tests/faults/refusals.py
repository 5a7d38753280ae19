#!/usr/bin/env python3
"""Wrong arguments and images or surroundings that do not fit: the right exit code, a message that names what is in the
way, and nothing made or harmed."""
import ctypes
import hashlib
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, Target, ckpt, differences, fingerprint, run_tests

NOBODY = 65534


def no_such_process(place):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for verb in ("dump", "pre-dump"):
        ckpt(verb, "-p", gone.pid, "-f", os.path.join(place.path, "image")).expect(4, str(gone.pid))
    ckpt("check", "-p", gone.pid).expect(4, str(gone.pid))
    if os.listdir(place.path):
        raise Failure(f"left behind: {os.listdir(place.path)}")


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended since it was listed


def init_and_kernel_threads(place):
    image = os.path.join(place.path, "image")
    kernel = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == "2"]
    for pid in ["1", *kernel[:1]]:
        for verb in ("dump", "pre-dump"):
            result = ckpt(verb, "-p", pid, "-f", image)
            if result.code not in (2, 5, 6) or pid not in result.err:
                raise Failure(f"{verb} of {pid}: exit {result.code}\n{result.err}")
    if os.path.exists(image):
        raise Failure("an image was made")


def command_line(place):
    image = os.path.join(place.path, "image")
    for line in (["dump"], ["dump", "-p", "abc", "-f", image], ["dump", "-p", "-5", "-f", image],
                 ["dump", "-p", "99999999999999999999", "-f", image], ["dump", "-p", "0", "-f", image],
                 ["dump", "-p", str(os.getpid())], ["restore"], ["dump", "-p", "1", "-f", image, "--no-such-flag"],
                 ["no-such-verb"], ["dump", "-p", str(os.getpid()), "-f", image, "--tcp-established"]):  # ckpt's own parent
        ckpt(*line).expect(2)
    if os.listdir(place.path):
        raise Failure(f"left behind: {os.listdir(place.path)}")


def folders(place):
    target = Target("mem_anonymous", place.folder("target"))
    before = fingerprint(target.pid)
    full = place.folder("full")
    with open(os.path.join(full, "precious"), "w", encoding="ascii") as stream:
        stream.write("content")
    plain = os.path.join(place.path, "plain")
    with open(plain, "w", encoding="ascii"):
        pass
    for verb in (["dump"], ["pre-dump"]):
        ckpt(*verb, "-p", target.pid, "-f", full).expect(2, full)
        result = ckpt(*verb, "-p", target.pid, "-f", plain)
        if result.code != 2:
            raise Failure(f"a file as destination: exit {result.code}\n{result.err}")
        below_file = ckpt(*verb, "-p", target.pid, "-f", os.path.join(plain, "none", "image"))
        if below_file.code not in (2, 4):
            raise Failure(f"a folder below a file: exit {below_file.code}\n{below_file.err}")
    if os.listdir(full) != ["precious"]:
        raise Failure(f"the full folder now holds {os.listdir(full)}")
    ckpt("dump", "-p", target.pid, "-f", os.path.join(place.path, "image"), "--prev", full).expect(4)
    ckpt("dump", "-p", target.pid, "-f", os.path.join(place.path, "image"), "--prev",
         os.path.join(place.path, "none")).expect(4)
    found = list(differences(before, fingerprint(target.pid)))
    if found:
        raise Failure(f"the target was altered: {found}")
    target.check()


def permissions(place):
    """As a user without rights: another's process, and a folder that cannot be written."""
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    os.chmod(place.path, 0o755)
    theirs = Target("mem_brk", place.folder("theirs"))
    open_folder = place.folder("open")
    os.chmod(open_folder, 0o777)
    image = os.path.join(open_folder, "image")
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": {**os.environ, "HOME": open_folder}}
    ckpt("dump", "-p", theirs.pid, "-f", image, **nobody).expect(5, str(theirs.pid))
    closed = place.folder("closed")
    os.chmod(closed, 0o755)
    own = subprocess.Popen(["sleep", "60"], user=NOBODY, group=NOBODY, extra_groups=[], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        ckpt("dump", "-R", "-p", own.pid, "-f", os.path.join(closed, "image"), **nobody).expect(5, closed)
        if os.listdir(closed) or os.listdir(open_folder):
            raise Failure("something was left behind")
        if own.poll() is not None:
            raise Failure("the process has ended")
    finally:
        own.kill()
        own.wait()
    theirs.check()


def saved(place, program="mem_private_file"):
    target = Target(program, place.folder("target"))
    image = os.path.join(place.path, "image")
    ckpt("dump", "-p", target.pid, "-f", image, "-R").expect(0)
    return target, image


def nothing_made(target):
    if os.path.exists(f"/proc/{target.pid}"):
        raise Failure("a process was made")


def pid_taken(place):
    target, image = saved(place)
    before = fingerprint(target.pid)
    ckpt("restore", "-f", image, "-d").expect(7, str(target.pid), "target_mem")
    if list(differences(before, fingerprint(target.pid))):
        raise Failure("the process in the way was altered")
    target.check()


def mapped_file_missing(place):
    target, image = saved(place)
    target.check()
    target.forget_answers()
    mapped = os.path.join(target.folder, "mapped")
    os.rename(mapped, mapped + ".away")
    ckpt("restore", "-f", image, "-d").expect(4, mapped)
    nothing_made(target)
    os.rename(mapped + ".away", mapped)
    ckpt("restore", "-f", image, "-d").expect(0)
    target.adopt()
    target.check()


def mapped_file_changed(place):
    target, image = saved(place)
    target.check()
    target.forget_answers()
    mapped = os.path.join(target.folder, "mapped")
    with open(mapped, "r+b") as stream:
        stream.seek(30 * 4096)
        stream.write(b"changed")
    ckpt("restore", "-f", image, "-d").expect(1, mapped)
    nothing_made(target)


def read_file_changed(place):
    """A file that the process has open for reading alone."""
    target, image = saved(place, "files")
    target.check()
    target.forget_answers()
    plain = os.path.join(target.folder, "plain")
    os.truncate(plain, 100)
    ckpt("restore", "-f", image, "-d").expect(1, plain)
    nothing_made(target)


def image_damaged(place):
    target, image = saved(place, "mem_anonymous")
    target.check()
    target.forget_answers()
    for name in os.listdir(image):
        path = os.path.join(image, name)
        with open(path, "rb") as stream:
            content = stream.read()
        if not content:
            continue
        for what, damaged in (("cut", content[:len(content) // 2]),
                              ("flipped", content[:len(content) // 2] + bytes([content[len(content) // 2] ^ 0x20]) +
                               content[len(content) // 2 + 1:])):
            with open(path, "wb") as stream:
                stream.write(damaged)
            result = ckpt("verify", image)
            if result.code != 1:
                raise Failure(f"verify of {name}, {what}: exit {result.code}\n{result.err}{result.out}")
            result = ckpt("restore", "-f", image, "-d")
            if result.code != 1:
                raise Failure(f"restore of {name}, {what}: exit {result.code}\n{result.err}")
            nothing_made(target)
        with open(path, "wb") as stream:
            stream.write(content)
    ckpt("restore", "-f", os.path.join(place.path, "none"), "-d").expect(4)
    ckpt("verify", image).expect(0)


LOST = """
import os, signal, sys
child = os.fork()
if child == 0:
    signal.pause()
os.chdir(f"/proc/{child}")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os.write(1, b"ready")
os.close(1)
signal.pause()
"""


def what_restore_would_refuse(place):
    """A working folder that nothing can make again: the dump says so, and the process goes on."""
    image = os.path.join(place.path, "image")
    with subprocess.Popen([sys.executable, "-c", LOST], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            process.stdout.read()
            before = fingerprint(process.pid)
            for verb in (["dump"], ["dump", "-R"], ["pre-dump"]):
                ckpt(*verb, "-p", process.pid, "-f", image).expect(6, "/proc/")
                found = list(differences(before, fingerprint(process.pid)))
                if process.poll() is not None or found:
                    raise Failure(f"{' '.join(verb)} altered it: {found}")
                if os.path.exists(image):
                    raise Failure(f"{' '.join(verb)} left an image")
        finally:
            process.kill()


def rewrite(image, edit):
    """The image's description as `edit` changes it."""
    path = os.path.join(image, "manifest.json")
    with open(path, encoding="utf-8") as stream:
        document = json.load(stream)
    edit(document["tree"])
    text = json.dumps(document).encode()
    with open(path, "wb") as stream:
        stream.write(text)
    with open(os.path.join(image, "manifest.sha256"), "w", encoding="ascii") as stream:
        stream.write(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")


def other_label(place):
    """What would get another security label is made only where that is wanted; what a kernel lacks is said."""
    target, image = saved(place, "mem_anonymous")
    target.check()
    target.forget_answers()

    def confine(tree):
        tree["processes"][0]["threads"][0]["labels"] = [{"name": "current", "value": "system_u:system_r:httpd_t:s0"}]
        tree["processes"][0]["threads"][0]["util_min"] = 100

    rewrite(image, confine)
    ckpt("restore", "-f", image, "-d").expect(5, "httpd_t", "not changed", "runcon", "--drop-labels")
    nothing_made(target)
    has_clamps = os.path.exists("/proc/sys/kernel/sched_util_clamp_min")
    ckpt("restore", "-f", image, "-d", "--drop-labels").expect(0, *([] if has_clamps else ["clamp how much"]))
    target.adopt()
    target.check()


def rehearsal_names_differences(place):
    """What would come back otherwise than the image says, or not at all, is named; nothing outside changes by it."""
    target, image = saved(place, "deleted_file")
    target.check()
    target.forget_answers()
    path = os.path.join(image, "manifest.json")
    with open(path, encoding="utf-8") as stream:
        manifest = stream.read()
    listing = [(folder, sorted(names)) for folder, _, names in os.walk(place.path)]

    def rehearse(edit, code, *words):
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(manifest)
        rewrite(image, edit)
        result = ckpt("verify", "--rehearse", image)
        if result.code != code or not all(word in result.out + result.err for word in words):
            raise Failure(f"expected {code} and {words}, got exit {result.code}\n{result.out}{result.err}")
        nothing_made(target)

    def name(tree):
        tree["processes"][0]["threads"][0]["comm"] = "a name that is too long"

    def flag(tree):
        descriptor = next(d for d in tree["descriptors"] if d["kind"] == "file")
        descriptor["flags"] ^= 0o100000  # O_LARGEFILE: open sets it in any case

    def folder(tree):
        tree["files"][tree["processes"][0]["cwd"]]["path"] = "/no/such/folder"

    def older(tree):
        for thread in tree["processes"][0]["threads"]:
            del thread["personality"]

    rehearse(lambda tree: None, 0)
    rehearse(older, 0)
    rehearse(name, 1, "comm", "a name that is too long")
    rehearse(flag, 1, "flags")
    rehearse(folder, 1, "/no/such/folder")
    if listing != [(folder, sorted(names)) for folder, _, names in os.walk(place.path)]:
        raise Failure("a rehearsal made files")


def replaced_image_stays(place):
    """--force replaces an image by one that was rehearsed, or not at all."""
    target, image = Target("mem_anonymous", place.folder("target")), os.path.join(place.path, "image")
    if os.geteuid() != 0:
        raise Skip("needs root")
    ckpt("dump", "-R", "-p", target.pid, "-f", image).expect(0)
    before = fingerprint(target.pid)
    with open(os.path.join(image, "manifest.sha256"), encoding="ascii") as stream:
        digest = stream.read()

    def without_namespaces():
        if ctypes.CDLL(None).prctl(24, 21, 0, 0, 0) != 0:  # PR_CAPBSET_DROP, CAP_SYS_ADMIN
            raise OSError("cannot drop a capability")
    failed = ckpt("dump", "--force", "--rehearse", "-p", target.pid, "-f", image, preexec_fn=without_namespaces)
    if failed.code == 0 or "namespaces" not in failed.err:
        raise Failure(f"rehearsed without namespaces: exit {failed.code}\n{failed.out}{failed.err}")
    changed = list(differences(before, fingerprint(target.pid)))
    if changed:
        raise Failure(f"the target changed: {changed}")
    with open(os.path.join(image, "manifest.sha256"), encoding="ascii") as stream:
        if stream.read() != digest:
            raise Failure("the image was replaced by one that could not be rehearsed")
    if sorted(os.listdir(place.path)) != ["image", "target"]:
        raise Failure(f"left behind: {os.listdir(place.path)}")
    ckpt("dump", "--force", "--rehearse", "-p", target.pid, "-f", image).expect(0)
    target.reap()
    ckpt("restore", "-d", "-f", image).expect(0)
    target.adopt()
    target.check()


def parent_missing(place):
    target = Target("mem_anonymous", place.folder("target"))
    first, last = os.path.join(place.path, "first"), os.path.join(place.path, "last")
    ckpt("pre-dump", "-p", target.pid, "-f", first).expect(0)
    target.step()
    ckpt("dump", "-p", target.pid, "-f", last, "--prev", first).expect(0)
    target.reap()
    target.forget_answers()
    os.rename(first, first + ".away")
    ckpt("restore", "-f", last, "-d").expect(4, "first")
    nothing_made(target)
    os.rename(first + ".away", first)
    ckpt("restore", "-f", last, "-d").expect(0)
    target.adopt()
    target.check()


if __name__ == "__main__":
    sys.exit(run_tests(no_such_process, init_and_kernel_threads, command_line, folders, permissions, pid_taken,
                       mapped_file_missing, mapped_file_changed, read_file_changed, image_damaged, parent_missing,
                       what_restore_would_refuse, other_label, rehearsal_names_differences, replaced_image_stays))
