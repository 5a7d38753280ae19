#!/usr/bin/env python3
"""A user's process that root dumps and restores: what the user has put in the place of its files meanwhile must not open,
change or make anything with root's rights."""
import os
import socket
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, ckpt, run_tests, wait_until

USER = 65000
AS_USER = {"user": USER, "group": USER, "extra_groups": []}
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PRELUDE = """
import os, socket, sys, time
os.umask(0)
os.chdir("/")
d = sys.argv[1]
"""
WAIT = """
open(d + "/ready", "w").close()
while not os.path.exists(d + "/go"): time.sleep(0.02)
"""


class Theirs:
    """A process of a user in a folder of the user's, dumped."""

    def __init__(self, place, body, after="", **popen):
        if os.getuid() != 0:
            raise Skip("needs root, to be somebody else")
        os.chmod(place.path, 0o755)
        self.place = place
        self.folder = place.folder("theirs")
        os.chown(self.folder, USER, USER)
        os.chmod(self.folder, 0o755)
        self.process = subprocess.Popen(["/usr/bin/python3", "-S", "-c", PRELUDE + body + WAIT + after, self.folder],
                                        start_new_session=True, **AS_USER, **QUIET, **popen)
        wait_until(lambda: os.path.exists(self.at("ready")) or self.process.poll() is not None, "the process is set up")
        self.image = os.path.join(place.path, "image")
        ckpt("dump", "-p", self.process.pid, "-f", self.image).expect(0)
        self.process.wait()

    def at(self, name):
        return os.path.join(self.folder, name)

    def secret(self, name="secret"):
        path = os.path.join(self.place.path, name)
        with open(path, "w", encoding="ascii") as stream:
            stream.write("of root's")
        os.chmod(path, 0o600)
        return path

    def plant(self, name, target):
        """The user puts a link there."""
        if os.path.lexists(self.at(name)):
            os.rename(self.at(name), self.at(name + ".old"))
        os.symlink(target, self.at(name))
        os.lchown(self.at(name), USER, USER)

    def restore(self, *more):
        return ckpt("restore", "-f", self.image, "-d", *more)

    def restore_and_end(self, *more):
        self.restore(*more).expect(0)
        with open(self.at("go"), "w", encoding="ascii"):
            pass
        os.waitpid(self.process.pid, 0)  # an orphan of ckpt's, which comes to the harness


def untouched(path, text="of root's"):
    about = os.stat(path)
    with open(path, encoding="ascii") as stream:
        found = stream.read()
    if (about.st_uid, stat.S_IMODE(about.st_mode), found) != (0, 0o600, text):
        raise Failure(f"{path}: owner {about.st_uid}, mode {about.st_mode:o}, {found!r}")


OPEN = {"written": "f = os.open(d + '/x', os.O_RDWR | os.O_CREAT, 0o644)", "folder": "os.mkdir(d + '/x'); f = os.open(d + '/x', os.O_RDONLY)",
        "read": "open(d + '/x', 'w').write('123456789'); os.utime(d + '/x', (1, 1)); f = os.open(d + '/x', os.O_RDONLY)",
        "current": "os.mkdir(d + '/x'); os.chdir(d + '/x')"}


class Inside:
    """A workplace within another."""

    def __init__(self, path):
        self.path = path

    def folder(self, name):
        path = os.path.join(self.path, name)
        os.mkdir(path)
        return path


def links(place):
    """A link to what only root may open, in the place of a file or folder, and of a folder on the way."""
    for kind, body in OPEN.items():
        for way in ("itself", "above"):
            inside = place.folder(f"{kind}_{way}")
            theirs = Theirs(Inside(inside), body if way == "itself" else "os.mkdir(d + '/above'); d += '/above'\n" + body + "\nd = d[:-6]")
            secret = theirs.secret("x")
            os.utime(secret, (1, 1))
            if way == "itself":
                theirs.plant("x", "../x")
            else:
                theirs.plant("above", "..")
            if kind in ("folder", "current"):
                os.unlink(secret)
                os.mkdir(secret, 0o700)
            theirs.restore().expect(1, "symbolic link")
            theirs.restore("--allow-changed", "*").expect(1, "symbolic link")


def other_files(place):
    """Another file under the name, no link: the process gets it only where its user may open it, and one that it wrote only when told."""
    theirs = Theirs(place, OPEN["written"])
    secret = theirs.secret()
    os.rename(theirs.at("x"), theirs.at("x.old"))  # its number must not come again
    os.link(secret, theirs.at("x"))
    theirs.restore().expect(1, "another file", "--allow-changed")
    theirs.restore("--allow-changed", theirs.at("x")).expect(5, str(USER))
    os.unlink(theirs.at("x"))
    with open(theirs.at("x"), "w", encoding="ascii"):
        pass
    os.chown(theirs.at("x"), USER, USER)
    theirs.restore().expect(1, "another file")
    theirs.restore_and_end("--allow-changed", theirs.at("x"))
    untouched(secret)


def given_up_rights(place):
    """A file that root opened before it became the user is given back; the name that leads to another is not."""
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    log = os.path.join(place.path, "log")
    with open(log, "w", encoding="ascii"):
        pass
    os.chmod(log, 0o600)
    held = os.open(log, os.O_WRONLY)
    theirs = Theirs(place, f"os.write({held}, b'one')", f"os.write({held}, b'two')", pass_fds=(held,))
    os.close(held)
    theirs.restore_and_end()
    with open(log, encoding="ascii") as stream:
        if stream.read() != "onetwo":
            raise Failure("the process did not go on writing")


def deleted_files(place):
    """The name of a deleted file leads to root's by now: that stays as it is, also in a dry run."""
    theirs = Theirs(place, "f = os.open(d + '/x', os.O_RDWR | os.O_CREAT, 0o750); os.write(f, b'theirs'); os.unlink(d + '/x')",
                    "open(d + '/result', 'w').write('%s %o' % (os.pread(f, 99, 0), os.fstat(f).st_mode))")
    secret = theirs.secret()
    theirs.plant("x", secret)
    before = os.stat(theirs.folder).st_mtime_ns
    ckpt("restore", "-n", "-f", theirs.image).expect(0)
    if os.stat(theirs.folder).st_mtime_ns != before:
        raise Failure("the dry run made something")
    theirs.restore_and_end()
    untouched(secret)
    with open(theirs.at("result"), encoding="ascii") as stream:
        found = stream.read()
    if found != "b'theirs' 100750":
        raise Failure(f"the deleted file came back as {found}")
    if sorted(os.listdir(theirs.folder)) != ["go", "ready", "result", "x"]:
        raise Failure(f"left behind: {os.listdir(theirs.folder)}")


def socket_files(place):
    """The file of a unix socket, its name or its folder a link now; and owner and mode where all is well."""
    theirs = Theirs(place, "os.mkdir(d + '/run'); s = socket.socket(socket.AF_UNIX); s.bind(d + '/run/s'); os.chmod(d + '/run/s', 0o705); s.listen(1)")
    secret = theirs.secret()
    os.unlink(theirs.at("run/s"))
    os.symlink(secret, theirs.at("run/s"))
    theirs.restore().expect(7, theirs.at("run/s"))
    untouched(secret)
    os.unlink(theirs.at("run/s"))
    roots = place.folder("roots")
    os.chmod(roots, 0o755)
    os.rename(theirs.at("run"), theirs.at("run.old"))
    os.symlink(roots, theirs.at("run"))
    theirs.restore().expect(1, "symbolic link")
    if os.listdir(roots):
        raise Failure("made in root's folder")
    os.unlink(theirs.at("run"))
    os.mkdir(theirs.at("run"))
    theirs.restore().expect(5, theirs.at("run/s"))  # a folder of root's now
    os.chown(theirs.at("run"), USER, USER)
    theirs.restore().expect(0)
    about = os.stat(theirs.at("run/s"))
    if (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) != (USER, USER, 0o705):
        raise Failure(f"the socket file has owner {about.st_uid}:{about.st_gid}, mode {about.st_mode:o}")
    client = socket.socket(socket.AF_UNIX)
    client.connect(theirs.at("run/s"))
    client.close()
    with open(theirs.at("go"), "w", encoding="ascii"):
        pass


if __name__ == "__main__":
    sys.exit(run_tests(links, other_files, given_up_rights, deleted_files, socket_files))
