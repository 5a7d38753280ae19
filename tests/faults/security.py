#!/usr/bin/env python3
"""What man/ckpt-security.7 says, sentence by sentence: other users' images, parents, links, settings and locks."""
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, Failure, Skip, Target, ckpt, run_tests, wait_until

NOBODY = 65534


def nobody(folder):
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": {**os.environ, "HOME": folder, "XDG_RUNTIME_DIR": ""}}


def need_root():
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")


def give(path, uid=NOBODY):
    os.lchown(path, uid, uid)


def saved(place, *more):
    """A target's image, and the target, which goes on."""
    target, image = Target("mem_anonymous", place.folder("target")), os.path.join(place.path, "image")
    ckpt("dump", "-R", "-p", target.pid, "-f", image, *more).expect(0)
    return target, image


def restored(target, image, *more):
    target.kill()
    target.forget_answers()
    ckpt("restore", "-f", image, "-d", *more).expect(0)
    target.adopt()
    target.check()


def modes(place):
    target, image = Target("mem_anonymous", place.folder("target")), os.path.join(place.path, "image")
    ckpt("dump", "-p", target.pid, "-f", image, umask=0).expect(0)
    target.reap()
    for path, mode in [(image, 0o700), *((os.path.join(image, name), 0o600) for name in os.listdir(image))]:
        if stat.S_IMODE(os.lstat(path).st_mode) != mode:
            raise Failure(f"{path}: mode {os.lstat(path).st_mode:o}")


def image_of_another_user(place):
    """Folder and each file, owned or writable by others: restore, squash and a rehearsal refuse; --trust does not; inspect and verify read it."""
    need_root()
    target, image = saved(place)
    squashed = os.path.join(place.path, "squashed")
    for path in [image, *(os.path.join(image, name) for name in os.listdir(image))]:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        for what, spoil, mend in (("belongs to another user", lambda: give(path), lambda: give(path, 0)),
                                  ("can be written by other users", lambda: os.chmod(path, mode | 0o020), lambda: os.chmod(path, mode)),
                                  ("can be written by other users", lambda: os.chmod(path, mode | 0o002), lambda: os.chmod(path, mode))):
            spoil()
            for more in ([], ["--lazy"], ["-n"]):
                ckpt("restore", "-f", image, "-d", *more).expect(5, path, what, "--trust")
            ckpt("squash", image, squashed).expect(5, path)
            ckpt("verify", "--rehearse", image).expect(5, path, what, "--trust")
            mend()
    give(image)
    ckpt("verify", image).expect(0)
    ckpt("inspect", image).expect(0)
    ckpt("verify", "--rehearse", "--trust", image).expect(0)
    ckpt("squash", image, squashed, "--trust").expect(0)
    restored(target, image, "--trust")


def parent_of_another_user(place):
    need_root()
    target = Target("mem_anonymous", place.folder("target"))
    base, image = os.path.join(place.path, "base"), os.path.join(place.path, "image")
    ckpt("pre-dump", "-p", target.pid, "-f", base).expect(0)
    ckpt("dump", "-R", "-p", target.pid, "-f", image, "--prev", base).expect(0)
    give(os.path.join(base, "manifest.json"))
    for more in ([], ["--lazy"]):
        ckpt("restore", "-f", image, "-d", *more).expect(5, base)
    ckpt("squash", image, image + ".squashed").expect(5, base)
    give(os.path.join(base, "manifest.json"), 0)
    restored(target, image)


def parent_replaced(place):
    """The child knows its parent's manifest, not only its name: another one of the same id is found."""
    target = Target("mem_anonymous", place.folder("target"))
    base, image = os.path.join(place.path, "base"), os.path.join(place.path, "image")
    ckpt("pre-dump", "-p", target.pid, "-f", base).expect(0)
    ckpt("dump", "-R", "-p", target.pid, "-f", image, "--prev", base).expect(0)
    path, digest = (os.path.join(base, name) for name in ("manifest.json", "manifest.sha256"))
    with open(path, encoding="utf-8") as stream:
        was = stream.read()
    manifest = was.replace('"kind":', '"kind" :', 1)
    if manifest == was:
        raise Failure("the manifest was not changed")
    for text in (manifest, was):
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        with open(digest, "w", encoding="utf-8") as stream:
            stream.write(f"{hashlib.sha256(text.encode()).hexdigest()}  manifest.json\n")
        ckpt("verify", base).expect(0)
        for line in (["verify", image], ["restore", "-f", image, "-n"]):
            ckpt(*line).expect(*((1, base, "SHA-256") if text is manifest else (0,) if line[0] == "verify" else (7,)))
    target.check()


def digests(place):
    """As sha256sum has them: of all but the pages, and of those with --hash sha256, after which nothing can be changed unseen."""
    target, image = saved(place)
    hashed, squashed = image + ".hashed", image + ".squashed"
    ckpt("dump", "-R", "-p", target.pid, "-f", hashed, "--hash", "sha256").expect(0)
    ckpt("squash", hashed, squashed, "--hash", "sha256").expect(0)
    for folder, pages in ((image, False), (hashed, True), (squashed, True)):
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as stream:
            files = json.load(stream)["files"]
        for file in files:
            with open(os.path.join(folder, file["name"]), "rb") as stream:
                digest = hashlib.sha256(stream.read()).hexdigest()
            wanted = digest if pages or not file["name"].startswith("pages") else ""
            if file["sha256"] != wanted:
                raise Failure(f"{folder}: {file['name']}: sha256 {file['sha256']!r}, not {wanted!r}")
    target.kill()
    with open(os.path.join(hashed, "pages"), "r+b") as stream:
        stream.seek(os.path.getsize(os.path.join(hashed, "pages")) - 1)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    for line in (["verify", hashed], ["restore", "-f", hashed, "-d"], ["restore", "-f", hashed, "-d", "--lazy"], ["squash", hashed, image + ".again"]):
        ckpt(*line).expect(1, "digest")
    target.forget_answers()
    ckpt("restore", "-f", squashed, "-d", "--lazy").expect(0)
    target.adopt()
    target.check()


def destination_link(place):
    """A link of another user in a folder that others may write; his own, and those in folders of one's own, are followed."""
    need_root()
    target = Target("mem_anonymous", place.folder("target"))
    open_folder, theirs, ours = place.folder("open"), place.folder("theirs"), place.folder("ours")
    os.chmod(open_folder, 0o1777)
    give(theirs)
    link = os.path.join(open_folder, "x")
    os.symlink(theirs, link)
    give(link)
    for image in (link, os.path.join(link, "below")):
        for verb in (["pre-dump"], ["dump", "-R"]):
            ckpt(*verb, "-p", target.pid, "-f", image).expect(5, link)
    if os.listdir(theirs):
        raise Failure(f"in another user's folder: {os.listdir(theirs)}")
    os.unlink(link)
    os.symlink(ours, link)
    ckpt("dump", "-R", "-p", target.pid, "-f", link).expect(0)
    ckpt("verify", ours).expect(0)
    target.check()


def pid_file(place):
    need_root()
    target, image = saved(place)
    target.kill()
    target.forget_answers()
    open_folder, victim = place.folder("open"), os.path.join(place.path, "victim")
    os.chmod(open_folder, 0o777)
    with open(victim, "w", encoding="ascii") as stream:
        stream.write("precious")
    file = os.path.join(open_folder, "pid")
    os.symlink(victim, file)
    give(file)
    for number in range(os.getpid(), os.getpid() + 200):
        os.symlink(victim, f"{file}.{number}")
    ckpt("restore", "-f", image, "-d", "--pidfile", file).expect(0)
    target.adopt()
    with open(victim, encoding="ascii") as stream:
        if stream.read() != "precious":
            raise Failure("a file was written through a link")
    if os.path.islink(file) or open(file, encoding="ascii").read() != f"{target.pid}\n":
        raise Failure("the pid file is not one of ours")
    target.check()


def settings_of_another_user(place):
    need_root()
    home = place.folder("home")
    folder = os.path.join(home, ".config", "ckpt")
    os.makedirs(folder)
    file, ran = os.path.join(folder, "config.toml"), os.path.join(place.path, "ran")
    script = os.path.join(home, "script")
    with open(script, "w", encoding="ascii") as stream:
        stream.write(f"#!/bin/sh\n: > {ran}\n")
    os.chmod(script, 0o755)
    with open(file, "w", encoding="ascii") as stream:
        stream.write(f'[dump]\naction-script = "{script}"\n')
    target = Target("mem_anonymous", place.folder("target"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CKPT_CONFIG", "XDG_"))} | {"HOME": home}

    def dump(**more):
        subprocess.run(["rm", "-rf", os.path.join(place.path, "image"), ran], check=True)
        return ckpt("dump", "-R", "-p", target.pid, "-f", os.path.join(place.path, "image"), env=environment | more)
    for spoil, mend in ((lambda: give(file), lambda: give(file, 0)), (lambda: os.chmod(file, 0o666), lambda: os.chmod(file, 0o644))):
        spoil()
        dump().expect(0, file)
        dump(XDG_CONFIG_HOME=os.path.dirname(folder), HOME="/").expect(0, file)
        if os.path.exists(ran):
            raise Failure("a script that another user could name has run")
        dump(CKPT_CONFIG=file).expect(5, file)
        mend()
    dump().expect(0)
    if not os.path.exists(ran):
        raise Failure("a file of our own is not read")
    target.check()


STRANGER = """
import os, socket, sys, time
held = []
for name in sys.argv[1:]:
    try:
        if name.startswith("@"):
            held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            held[-1].bind("\\0" + name[1:])
            held[-1].listen(5)
        else:
            os.open(name, os.O_WRONLY)
            print("opened", name, flush=True)
    except OSError:
        pass
print("ready", flush=True)
time.sleep(60)
"""


def locks(place):
    """No other user can hold up a capture, or the tracking of writes. Two captures exclude each other."""
    need_root()
    target = Target("mem_anonymous", place.folder("target"))
    start = open(f"/proc/{target.pid}/stat", encoding="ascii").read().rpartition(")")[2].split()[19]
    names = [f"@ckpt-capture/{target.pid}/{start}", f"@ckpt-tracking/{target.pid}/{start}", f"/proc/{target.pid}/clear_refs"]
    stranger = subprocess.Popen(["/usr/bin/python3", "-c", STRANGER, *names], user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE, text=True)
    try:
        if stranger.stdout.readline() != "ready\n":
            raise Failure("another user could open the file of the lock")
        base, image = os.path.join(place.path, "base"), os.path.join(place.path, "image")
        ckpt("pre-dump", "-p", target.pid, "-f", base).expect(0)
        done = ckpt("--json", "dump", "-R", "-p", target.pid, "-f", image, "--prev", base).expect(0)
        if os.path.isdir("/run/ckpt") and not done.document()["tracked"]:
            raise Failure("the writes were not tracked")
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()
    with open(f"/proc/{target.pid}/clear_refs", "w", encoding="ascii") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        ckpt("pre-dump", "-p", target.pid, "-f", image + ".2").expect(7, "captured")
    target.check()


def run_folder(place):
    """Root's own and closed to all others."""
    need_root()
    target = Target("mem_anonymous", place.folder("target"))
    ckpt("pre-dump", "-p", target.pid, "-f", os.path.join(place.path, "image")).expect(0)
    about = os.lstat("/run/ckpt")
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != 0 or about.st_mode & 0o077:
        raise Failure(f"/run/ckpt: uid {about.st_uid}, mode {about.st_mode:o}")
    wait_until(lambda: any(str(target.pid) in name for name in os.listdir("/run/ckpt")), "the tracking daemon's socket", 5)
    target.check()
    wait_until(lambda: not any(f"-{target.pid}-" in name for name in os.listdir("/run/ckpt")), "the tracking daemon's socket goes with the process", 5)


def with_another_user(place):
    """A folder of nobody's, a process of his, and how he calls ckpt."""
    need_root()
    ctypes.CDLL(None).unshare(0x08000000)  # CLONE_NEWIPC: no System V object of others, which he could not read
    os.chmod(place.path, 0o755)
    folder = place.folder("theirs")
    give(folder)
    binary = os.path.join(place.path, "ckpt")
    shutil.copy(CKPT, binary)
    process = subprocess.Popen(["sleep", "60"], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def as_nobody(*words):
        return subprocess.run([binary, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd="/", **nobody(folder))
    return folder, process, as_nobody


def not_restorable_by_this_user(place):
    """He is told before his process ends."""
    folder, process, as_nobody = with_another_user(place)
    try:
        image = os.path.join(folder, "image")
        checked = as_nobody("check", "-p", str(process.pid))
        if checked.returncode != 1 or "could not restore" not in checked.stdout:
            raise Failure(f"check: exit {checked.returncode}: {checked.stdout}{checked.stderr}")
        refused = as_nobody("dump", "-p", str(process.pid), "-f", image)
        if refused.returncode != 5 or "could not restore" not in refused.stderr or process.poll() is not None or os.path.exists(image):
            raise Failure(f"dump: exit {refused.returncode}: {refused.stderr}")
        done = as_nobody("dump", "-R", "-p", str(process.pid), "-f", image)
        if done.returncode != 0 or process.poll() is not None:
            raise Failure(f"dump -R: exit {done.returncode}: {done.stderr}")
        forced = as_nobody("dump", "--force", "-p", str(process.pid), "-f", image)
        if forced.returncode != 0 or process.wait(10) is None:
            raise Failure(f"dump --force: exit {forced.returncode}: {forced.stderr}")
    finally:
        process.kill()
        process.wait()


CAP_CHECKPOINT_RESTORE = 40


def image_of_a_user(place):
    """Root restores it with its owner's rights: no capability, no other user, not root's terminal."""
    folder, process, as_nobody = with_another_user(place)
    image, pid = os.path.join(folder, "image"), process.pid
    try:
        done = as_nobody("dump", "--force", "-p", str(pid), "-f", image)
        if done.returncode != 0:
            raise Failure(f"dump: exit {done.returncode}: {done.stderr}")
    finally:
        process.kill()
        process.wait()
    manifest = os.path.join(image, "manifest.json")
    with open(manifest, encoding="utf-8") as stream:
        text = stream.read()

    def claim(of_process=None, **members):
        """The owner of an image can have it say anything."""
        told = json.loads(text)
        told["tree"]["processes"][0].update(of_process or {})
        told["tree"]["processes"][0]["threads"][0].update(members)
        told = json.dumps(told)
        for path, content in ((manifest, told), (os.path.join(image, "manifest.sha256"), f"{hashlib.sha256(told.encode()).hexdigest()}  manifest.json\n")):
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(content)

    for more in (["--shell-job"], ["--new-pidns"]):
        ckpt("restore", "-f", image, "-d", *more).expect(5, "another user", more[0])
    claim(cap_permitted=hex(1 << CAP_CHECKPOINT_RESTORE), cap_effective=hex(1 << CAP_CHECKPOINT_RESTORE))
    ckpt("restore", "-f", image, "-d").expect(5, "another user", "capabilities")
    for of_process in ({"session": 1 << 20, "outside_session": True, "terminal": 34816}, {"session": os.getsid(0), "outside_session": True}):
        claim(of_process)
        ckpt("restore", "-f", image, "-d").expect(5, "session and terminal")
    claim(uid=[0, 0, 0, 0])
    if ckpt("restore", "-f", image, "-d").code not in (5, 7) or os.path.exists(f"/proc/{pid}"):
        raise Failure("an image gave its process another user")
    claim()
    ckpt("restore", "-f", image, "-n").expect(0)
    ckpt("restore", "-f", image, "-d").expect(0, "another user")
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as stream:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in stream if ":\t" in line)
        if status["Uid"].split() != [str(NOBODY)] * 4 or int(status["CapPrm"], 16) != 0 or status["Groups"].split() not in ([], [str(NOBODY)]):
            raise Failure(f"it runs with {status}")
    finally:
        os.kill(pid, signal.SIGKILL)


def abandoned_staging(place):
    """`ckpt rm --staging` takes what nobody holds, and nothing else."""
    folder = place.folder("images")
    left, held, other = (os.path.join(folder, name) for name in (".ckpt-staging-a-123456", ".ckpt-staging-b-123456", "other"))
    for path in (left, held, other):
        os.mkdir(path)
        with open(os.path.join(path, "pages"), "w", encoding="ascii") as stream:
            stream.write("secret")
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    ckpt("rm", "--staging", "-n", folder).expect(0, left)
    if len(os.listdir(folder)) != 3:
        raise Failure("a dry run removed something")
    ckpt("rm", "--staging", folder).expect(0, left)
    if sorted(os.listdir(folder)) != sorted(os.path.basename(path) for path in (held, other)):
        raise Failure(f"there are {os.listdir(folder)}")
    os.close(lock)


if __name__ == "__main__":
    sys.exit(run_tests(modes, image_of_another_user, parent_of_another_user, parent_replaced, digests, destination_link, pid_file,
                       settings_of_another_user, locks, run_folder, not_restorable_by_this_user, image_of_a_user, abandoned_staging))
