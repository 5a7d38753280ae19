"""What the tests of this folder share: a mount namespace and a folder of their own, cases that run one after the other."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
SOURCE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
INSIDE = "CKPT_PACKAGE_TEST_INSIDE"


def enter(*programs):
    """Goes on in a mount namespace of its own; a machine on which that cannot be is skipped by name."""
    if os.environ.get(INSIDE):
        return
    missing = [program for program in ("unshare", "mount", *programs) if not shutil.which(program)]
    if os.geteuid() != 0:
        missing.append("root (for chroot and mounts)")
    elif not missing and subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        missing.append("the right to make a mount namespace")
    if missing:
        print("skipped: " + os.path.basename(sys.argv[0]) + ": needs " + ", ".join(missing))
        sys.exit(SKIPPED)
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


def change_root_to(root, uid=0):
    """For preexec_fn."""
    def change():
        os.chroot(root)
        os.chdir("/")
        os.setuid(uid)
    return change if root else None


def run(*command, root=None, uid=0, status=0, **options):
    """What it prints, both streams; in `root` as its root folder. AssertionError: it ends with another status."""
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          preexec_fn=change_root_to(root, uid), **options)
    assert done.returncode == status, f"{' '.join(command)}: status {done.returncode}, not {status}:\n{done.stdout}"
    return done.stdout


def host_feature(name, ckpt, root=None, **options):
    """The first row of that name in what `ckpt check` says of the host; whether anything is lacking is not asked."""
    done = subprocess.run([ckpt, "check", "--json"], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          preexec_fn=change_root_to(root), check=False, **options)
    return next(feature for feature in json.loads(done.stdout)["host"] if feature["name"] == name)


def holds(text, *wanted):
    for words in wanted:
        assert words in text, f"no {words!r} in:\n{text}"


def tree(folder):
    """Every path below the folder."""
    found = [os.path.join(at, name) for at, folders, names in os.walk(folder) for name in folders + names]
    return sorted(os.path.relpath(path, folder) for path in found)


def same_bytes(path, source):
    with open(path, "rb") as one, open(os.path.join(SOURCE, source), "rb") as other:
        assert one.read() == other.read(), f"{path} is not {source}"


def main(*cases):
    """Each case is given the same folder, which goes away afterwards, with what is mounted below it."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ckpt-package-test-") as work:
        for case in cases:
            try:
                case(work)
                print(f"ok   {case.__name__}")
            except Exception as error:  # whatever it is, what is mounted goes away
                print(f"FAIL {case.__name__}: {type(error).__name__}: {error}")
                failed += 1
                break  # later ones build on it
        with open("/proc/self/mountinfo", encoding="utf-8") as stream:
            for point in [line.split()[4] for line in stream if line.split()[4].startswith(work)]:
                subprocess.run(["umount", "--lazy", point], check=False)
    sys.exit(1 if failed else 0)
