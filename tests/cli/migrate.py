#!/usr/bin/env python3
"""migrate and receive on one machine: whatever is killed, at whatever moment, one process goes on, and never two; and what a receiver refuses."""
import contextlib
import glob
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, become_subreaper, state_of, wait_until
from migrate_peer import Peer
from prompt import CKPT, main, run

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = os.environ.get("CKPT_LONG") == "1"
HEADER = struct.Struct("<IBBHIIQ")
MAGIC = int.from_bytes(b"CKM1", "little")
KINDS = {name: number for number, name in enumerate(["", "hello", "ready", "data", "end", "make", "made", "go", "runs", "not", "alive", "done", "later", "want", "all"])}
ID = "0123456789abcdef0123456789abcdef"
XXH3_OF_X9 = b"cf04e239ea3464d1d369c0e02d279352"


def migrate(pid, *options, what="-", new_pidns=True, **changed):
    """ckpt migrate in this folder. `changed`: values of options, by their names without the dashes."""
    words = {"to": "there", "remote_ckpt": CKPT, "timeout": "5", "ssh": f"{sys.executable} {HERE}/migrate_link.py {what}", **changed}
    named = [word for name, value in words.items() for word in ("--" + name.replace("_", "-"), value)]
    command = [CKPT, "migrate", "-p", str(pid), *named, *(["--new-pidns"] if new_pidns else []), *options]
    return subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)


def arrived(peer, report):
    """It goes on there, and there alone; the image that was kept is whole."""
    if peer.all() != [report["pid_outside_there"]] or report["pid_there"] != peer.pid:
        yield f"{peer.all()}, {report}"
    if problem := peer.problem():
        yield problem
    verified = run("verify", "kept", "--quiet")
    if verified.returncode != 0:
        yield f"the image that was kept: {verified.stderr}"


def moves():
    """To the other end, with the same memory; the source has ended, and nothing is left."""
    with Peer(8) as peer:
        done = migrate(peer.pid, "--json", "--iterations", "2", "--keep-image", "kept")
        if done.returncode != 0:
            yield f"exit {done.returncode}: {done.stderr}"
            return
        report = json.loads(done.stdout)
        if state_of(peer.pid) not in ("", "Z"):
            yield "the source has not ended"
        if len(report["rounds"]) != 2 or report["bytes_sent"] < 8 << 20 or not 0 < report["downtime_us"] < 20_000_000:
            yield f"report: {report}"
        yield from arrived(peer, report)


def moves_by_words():
    """Without an image here, and back to the numbers that it had."""
    with Peer(2) as peer:
        done = migrate(peer.pid, "--bandwidth", "200M", "--files", "written")
        if done.returncode != 0 or "runs on" not in done.stderr or "ended here" not in done.stderr:
            yield f"exit {done.returncode}: {done.stderr}"
        if problem := peer.problem():
            yield problem


CASES = [
    # victim, side, frame, when, who goes on: "here", "there", or "" for either (a worker may be done before it notices that its front has ended)
    ("receiver", "to", "hello", "before", "here"), ("receivers", "to", "data", "after", "here"), ("link", "to", "data", "amid", "here"),
    ("receiver", "to", "end", "before", "here"), ("receivers", "to", "make", "before", "here"), ("receiver", "to", "make", "after", "here"),
    ("receivers", "from", "made", "before", "here"), ("receiver", "from", "made", "after", ""), ("receivers", "to", "go", "before", "here"),
    ("receivers", "to", "go", "after", ""), ("receiver", "to", "go", "after", ""), ("link", "to", "go", "before", "here"),
    ("link", "to", "go", "after", ""), ("receivers", "from", "runs", "before", "there"), ("link", "from", "runs", "before", "there"),
    ("receiver", "from", "runs", "after", "there"), ("worker", "to", "hello", "after", "here"), ("worker", "to", "data", "after", "here"),
    ("front", "to", "data", "after", ""), ("worker", "to", "make", "before", "here"), ("front", "to", "make", "after", ""),
    ("worker", "from", "made", "before", "here"), ("worker", "to", "go", "before", ""), ("worker", "to", "go", "after", ""),
    ("front", "to", "go", "after", "there"), ("worker", "from", "runs", "before", "there"), ("worker", "from", "runs", "after", "there"),
    ("front", "from", "runs", "before", "there"),
]


def survives():
    """One goes on, whatever is killed at whatever moment; and what is left of the others ends."""
    for number, (victim, side, kind, when, who) in enumerate(CASES * (5 if LONG else 1)):
        name = f"{victim} {when} '{kind}' {side} the receiver"
        begin = time.monotonic()
        os.mkdir(f"case{number}")
        os.chdir(f"case{number}")
        with Peer(1) as peer:
            done = migrate(peer.pid, what=f"{victim}:{side}:{kind}:{when}")
            if not os.path.exists("hit"):
                yield f"{name}: nothing was killed: {done.stderr}"
            try:  # what outlives the killed ones needs a moment
                wait_until(lambda: len(peer.all()) == 1, "one is left", 15)
            except Failure:
                yield f"{name}: {[(pid, state_of(pid)) for pid in peer.all()]}: exit {done.returncode}: {done.stderr}"
            if problem := peer.problem():
                yield f"{name}: {problem}: exit {done.returncode}: {done.stderr}"
            goes_on = "here" if peer.all() == [peer.pid] else "there"
            if who not in ("", goes_on):
                yield f"{name}: it goes on {goes_on}: exit {done.returncode}: {done.stderr}"
            if done.returncode >= 0 and (done.returncode == 0) != (goes_on == "there") and victim not in ("front", "worker"):
                yield f"{name}: exit {done.returncode}, and it goes on {goes_on}: {done.stderr}"
        os.chdir("..")
        if os.environ.get("CKPT_TEST_TIMES"):
            print(f"{name}: {time.monotonic() - begin:.2f} s, {goes_on}")


def descendants(pid):
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as stream:
            for child in map(int, stream.read().split()):
                out += [child, *descendants(child)]
    return out


def random_moments():
    """The same, at moments that have to do with nothing."""
    for number in range(200 if LONG else 0):
        os.mkdir(f"random{number}")
        os.chdir(f"random{number}")
        with Peer(2) as peer:
            ssh = f"{sys.executable} {HERE}/migrate_link.py -"
            command = [CKPT, "migrate", "-p", str(peer.pid), "--to", "there", "--remote-ckpt", CKPT, "--timeout", "3", "--ssh", ssh, "--new-pidns"]
            with open("err", "w+", encoding="utf-8") as err, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err) as front:
                time.sleep(random.uniform(0, 0.25))
                victims = []
                with contextlib.suppress(OSError):
                    below = descendants(front.pid)
                    # The front, its worker, the link, the receiver's front.
                    victims = random.sample([front.pid, *below[:3]], random.choice([1, 1, 2]) if len(below) > 2 else 1)
                    for pid in victims:
                        os.kill(pid, signal.SIGKILL)
                front.wait(60)
            try:
                wait_until(lambda: len(peer.all()) == 1, "one is left", 30)
            except Failure:
                yield f"{number}: {[(pid, state_of(pid)) for pid in peer.all()]}"
            if problem := peer.problem():
                with open("err", encoding="utf-8") as err:
                    yield f"{number}: {len(victims)} killed: {problem}: {err.read()}"
        os.chdir("..")


def unknown():
    """Nobody can be asked: the source stays stopped, and is said to be."""
    with open("once.sh", "w", encoding="ascii") as script:
        script.write('[ -e asked ] && exit 9\ntouch asked\nexec "$@"\n')
    with Peer(1) as peer:
        once = f"sh {os.path.abspath('once.sh')} {sys.executable} {HERE}/migrate_link.py link:to:go:before"
        done = migrate(peer.pid, timeout="3", ssh=once)
        if done.returncode != 10 or "kill -CONT" not in done.stderr or "stopped" not in done.stderr:
            yield f"exit {done.returncode}: {done.stderr}"
        if [state_of(pid) for pid in peer.all()] != ["T"]:
            yield f"{[(pid, state_of(pid)) for pid in peer.all()]}"
        os.kill(peer.pid, signal.SIGCONT)
        if problem := peer.problem():
            yield f"after SIGCONT: {problem}"


def moves_lazily():
    """It runs there long before its memory has come, and the source stands still until it has."""
    with Peer(8) as peer:
        ssh = f"{sys.executable} {HERE}/migrate_link.py -"
        command = [CKPT, "migrate", "-p", str(peer.pid), "--to", "there", "--remote-ckpt", CKPT, "--ssh", ssh, "--new-pidns", "--lazy", "--json",
                   "--bandwidth", "8M", "--keep-image", "kept"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as moving:
            wait_until(lambda: len(peer.all()) == 2, "it is made there")
            before = peer.count()
            wait_until(lambda: peer.count() > before + 5 or moving.poll() is not None, "it runs there")
            if moving.poll() is not None or state_of(peer.pid) not in ("t", "T"):
                yield f"the source was not held while pages came: {state_of(peer.pid)}, exit {moving.poll()}"
            out, err = moving.communicate(timeout=60)
        if moving.returncode != 0:
            yield f"exit {moving.returncode}: {err}"
            return
        report = json.loads(out)
        if not report["lazy"] or report["bytes_later"] < 7 << 20 or report["later_us"] < 500_000 or report["downtime_us"] > report["later_us"]:
            yield f"report: {report}"
        yield from arrived(peer, report)
        wait_until(lambda: not glob.glob("/dev/shm/.ckpt-receive-*"), "nothing is left")


def waits_for_contents():
    """They are compared, or put back, between "go" and "runs": however long that takes, both ends hear of each other."""
    with open("content", "wb") as content:
        content.write(random.randbytes(3 << 20))
    with Peer(1) as peer:
        begin = time.monotonic()
        done = migrate(peer.pid, "--lazy", "--bandwidth", "1M", "--files", os.path.abspath("content"), timeout="1")
        if done.returncode != 0 or time.monotonic() - begin < 2:
            yield f"exit {done.returncode} after {time.monotonic() - begin:.1f} s: {done.stderr}"
        if problem := peer.problem():
            yield problem


HOOK = """
case $1 in
make) rm files/content; touch made;;
go) fsfreeze -f files; touch frozen;;
esac
"""


@contextlib.contextmanager
def file_system():
    """One of its own, mounted in the folder "files", that can be made to hang. Nothing: not here."""
    os.mkdir("files")
    with open("disk", "wb") as disk:
        disk.truncate(32 << 20)
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": False}
    made = subprocess.run(["sh", "-c", "command -v fsfreeze && mkfs.ext4 -q disk && mount -o loop disk files"], **quiet)
    try:
        yield made.returncode == 0
    finally:
        if made.returncode == 0:
            subprocess.run(["fsfreeze", "-u", "files"], **quiet)
            wait_until(lambda: subprocess.run(["umount", "files"], **quiet).returncode == 0, "nobody is at the files any more")


def gives_up_where_files_hang():
    """The file system does not answer any more while content is put back: the source goes on, and what was made there never runs."""
    with file_system() as there:
        if not there:
            print("gives_up_where_files_hang: no file system can be mounted and frozen here")
            return
        with open("files/content", "wb") as content:
            content.write(random.randbytes(1 << 20))
        with open("hook.sh", "w", encoding="ascii") as hook:
            hook.write(HOOK)
        with Peer(1) as peer:
            begin = time.monotonic()
            done = migrate(peer.pid, "--files", os.path.abspath("files/content"), timeout="1", ssh=f"{sys.executable} {HERE}/migrate_link.py hook:hook.sh")
            took = time.monotonic() - begin
            if done.returncode != 7 or "has got on with nothing" not in done.stderr or "half written" not in done.stderr or took < 10:
                yield f"exit {done.returncode} after {took:.1f} s: {done.stderr}"
            if not os.path.exists("frozen"):
                yield "the file system was not frozen"
            if peer.all() != [peer.pid]:
                yield f"{[(pid, state_of(pid)) for pid in peer.all()]}"
            if problem := peer.problem():
                yield problem
            subprocess.run(["fsfreeze", "-u", "files"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            time.sleep(0.5)
            if peer.all() != [peer.pid]:
                yield f"after it has answered: {[(pid, state_of(pid)) for pid in peer.all()]}"
            if problem := peer.problem():
                yield f"after it has answered: {problem}"


LAZY_CASES = [
    # victim, side, frame, when, which of them, what is left: "here" or "there" and running, "stopped": here, and told of with exit code 10
    ("receiver", "to", "later", "after", 1, "here"), ("receivers", "to", "go", "before", 1, "here"), ("link", "to", "go", "before", 1, "here"),
    ("link", "to", "data", "amid", 20, "stopped"), ("link", "from", "runs", "after", 1, "stopped"), ("worker", "to", "data", "after", 20, "stopped"),
    ("receiver", "from", "runs", "after", 1, "stopped"), ("link", "from", "all", "before", 1, "there"), ("receiver", "from", "all", "before", 1, "there"), ("worker", "from", "all", "before", 1, "there"),
    ("worker", "from", "all", "after", 1, "there"), ("daemon", "to", "data", "after", 30, "stopped"),
    ("front", "to", "data", "after", 20, "there"),
]


def receiver_said(name, done):
    """It has ended what it had made; its source cannot tell of that."""
    with open("hit", encoding="ascii") as stream:
        _, status = os.waitpid(int(stream.read()), 0)
    if os.waitstatus_to_exitcode(status) not in (1, 8) or "the source: has ended the connection" not in done.stderr:
        yield f"{name}: the receiver ends with {status:#x}: {done.stderr}"


def survives_lazily():
    """Never two; and what had run before its memory came ends there, and is kept as it was here."""
    for number, (victim, side, kind, when, nth, who) in enumerate(LAZY_CASES):
        name = f"{victim} {when} '{kind}' {nth} {side} the receiver"
        os.mkdir(f"lazy{number}")
        os.chdir(f"lazy{number}")
        with Peer(4) as peer:
            done = migrate(peer.pid, "--lazy", "--bandwidth", "8M", what=f"{victim}:{side}:{kind}:{when}:{nth}", timeout="3")
            if not os.path.exists("hit"):
                yield f"{name}: nothing was killed: {done.stderr}"
            try:
                wait_until(lambda: len(peer.all()) == 1, "one is left", 20)
            except Failure:
                yield f"{name}: {[(pid, state_of(pid)) for pid in peer.all()]}: exit {done.returncode}: {done.stderr}"
            if who == "stopped":
                try:
                    wait_until(lambda: peer.all() == [peer.pid] and state_of(peer.pid) == "T", "it is stopped", 20)  # the signal may wait for a processor
                except Failure:
                    yield f"{name}: {[(pid, state_of(pid)) for pid in peer.all()]}: exit {done.returncode}: {done.stderr}"
                if victim == "link" and side == "to":
                    yield from receiver_said(name, done)
                if victim != "worker" and (done.returncode != 10 or "kill -CONT" not in done.stderr or "stopped" not in done.stderr):
                    yield f"{name}: exit {done.returncode}: {done.stderr}"
            else:
                if problem := peer.problem():
                    yield f"{name}: {problem}: exit {done.returncode}: {done.stderr}"
                if who != ("here" if peer.all() == [peer.pid] else "there"):
                    yield f"{name}: it goes on elsewhere: exit {done.returncode}: {done.stderr}"
        os.chdir("..")


def loses_all():
    """Whoever came from them there, and is nobody's child any more, ends with them: before "lost" is said."""
    for name, word, number in (("link", f"{HERE}/migrate_link.py", signal.SIGKILL), ("receiver", "receive", signal.SIGTERM)):
        os.mkdir(name)
        os.chdir(name)
        yield from (f"{name}: {problem}" for problem in loses_by(word, number))
        os.chdir("..")


def loses_by(word, number):
    with Peer(24) as peer:
        ssh = f"{sys.executable} {HERE}/migrate_link.py -"
        command = [CKPT, "migrate", "-p", str(peer.pid), "--to", "there", "--remote-ckpt", CKPT, "--ssh", ssh, "--new-pidns", "--lazy", "--bandwidth", "4M",
                   "--timeout", "3"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as moving:
            wait_until(lambda: len(peer.all()) == 2, "it is made there")
            with open(peer.file + ".orphans", "w", encoding="ascii"):
                pass
            wait_until(lambda: len(peer.all()) > 4 or moving.poll() is not None, "they are more there")
            most = len(peer.all())
            for pid in descendants(moving.pid):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
                    if line.read().split(b"\0")[1:2] == [word.encode()]:
                        os.kill(pid, number)
            _, err = moving.communicate(timeout=60)
        if most <= 4 or moving.returncode != 10 or "were ended" not in err:
            yield f"{most} there, exit {moving.returncode}: {err}"
        if peer.all() != [peer.pid] or state_of(peer.pid) != "T":
            yield f"{[(pid, state_of(pid)) for pid in peer.all()]}: {err}"


def refuses():
    """Before anything is touched; the process runs on."""
    with Peer(1) as peer:
        cases = [
            ({"remote_ckpt": "a;b"}, 2, "is no plain path"),
            ({"ssh": "false"}, 8, "has ended the connection"),
            ({"ssh": "echo"}, 1, "no frame of a migration"),
            ({"dir": "relative"}, 2, "no absolute path"),
            ({"map_address": "nonsense"}, 2, "nonsense"),
            ({"new_pidns": False}, 7, "--new-pidns"),
        ]
        for changed, code, text in cases:
            done = migrate(peer.pid, **changed)
            if done.returncode != code or text not in done.stderr:
                yield f"{changed}: exit {done.returncode}: {done.stderr}"
        if peer.all() != [peer.pid]:
            yield f"{peer.all()}"
        if problem := peer.problem():
            yield problem


def frame(kind, payload=b"", name=b"", offset=0, **lies):
    fields = {"magic": MAGIC, "kind": KINDS.get(kind, kind), "name_length": len(name), "zero": 0, "length": len(payload), "zero_too": 0, "offset": offset, **lies}
    return HEADER.pack(*fields.values()) + name + payload


def hello(**members):
    return frame("hello", json.dumps({"version": 1, "id": ID, "memory": 0, "pids": [], "host": {}, "restore": {"new_pidns": True}, **members}).encode())


def lazy():
    return hello(restore={"new_pidns": True, "lazy_silence_us": 1_000_000})


def forged():
    """What a stranger may send: it is refused in words, and leaves nothing."""
    data = frame("data", b"x" * 100, b"pages")
    streams = {
        "nothing": (b"", "ended the connection"),
        "no frame": (b"GET / HTTP/1.0\r\n\r\n" * 4, "no frame"),
        "no hello": (data, "does not begin"),
        "another version": (hello(version=2), "version 2"),
        "an id with a path": (hello(id="../../../../etc/cron.d/aaaaaaaaa"), "not understood"),
        "hello that is a list": (frame("hello", b"[1, 2]"), "not understood"),
        "hello of other types": (hello(pids="all"), "not understood"),
        "no patience at all": (hello(silence_us=0), "--timeout"),
        "patience without an end": (hello(silence_us=1 << 63), "--timeout"),
        "less than none": (hello(silence_us=-1), "--timeout"),
        "an unknown wish": (hello(restore={"trust": True}), "newer ckpt"),
        "a wish of another type": (hello(restore={"drop_labels": "all"}), "an option"),
        "a folder that is not there": (hello(restore={"dir": "/nowhere/at/all"}), "nowhere"),
        "a slash": (hello() + frame("data", b"x", b"../../etc/passwd"), "no name"),
        "a path": (hello() + frame("data", b"x", b"/etc/passwd"), "no name"),
        "a hidden name": (hello() + frame("data", b"x", b".."), "no name"),
        "no name": (hello() + frame("data", b"x"), "no name"),
        "a zero byte": (hello() + frame("data", b"x", b"pages\0.1"), "no name"),
        "a length that lies": (hello() + frame("data", b"x", b"pages", length=1 << 31), "claims"),
        "a name that is longer": (hello() + frame("data", b"x" * 200, b"pages", name_length=200), "claims"),
        "an unknown kind": (hello() + frame(77), "claims"),
        "bits that are zero": (hello() + frame("data", zero=1), "claims"),
        "bytes out of order": (hello() + frame("data", b"x", b"pages", 1 << 40), "out of order"),
        "bytes twice": (hello() + data + data, "out of order"),
        "another digest": (hello() + data + frame("end", b"0" * 32, b"pages", 100), "not arrived"),
        "another size": (hello() + data + frame("end", b"0" * 32, b"pages", 99), "not arrived"),
        "no end": (hello() + data + frame("make"), "has no end"),
        "go before all": (hello() + frame("go"), "none of an image's files"),
        "no image": (hello() + frame("make"), "message"),
        "too many files": (hello() + b"".join(frame("data", b"", b"pages.%d" % i) for i in range(400)), "one file more"),
        "pages later, unasked": (hello() + frame("later", b"", b"pages", 1 << 20), "none of an image's files"),
        "another file later": (lazy() + frame("later", b"", b"manifest.json", 1 << 20), "none of an image's files"),
        "more later than there is room": (lazy() + frame("later", b"", b"pages", 1 << 62), "no room"),
        "announced twice": (lazy() + frame("later", b"", b"pages", 9) + frame("later", b"", b"pages", 9), "too late"),
        "a part of a unit": (lazy() + frame("later", b"", b"pages", 1 << 20) + frame("data", b"x", b"pages", 0), "other units"),
        "a unit past the end": (lazy() + frame("later", b"", b"pages", 9) + frame("data", b"x", b"pages", 65536), "other units"),
        "a unit twice": (lazy() + frame("later", b"", b"pages", 9) + frame("data", b"x" * 9 + XXH3_OF_X9, b"pages") * 2, "comes again"),
        "another unit than its digest": (lazy() + frame("later", b"", b"pages", 9) + frame("data", b"y" * 9 + XXH3_OF_X9, b"pages"), "not arrived"),
        "a unit without a digest": (lazy() + frame("later", b"", b"pages", 9) + frame("data", b"x" * 9, b"pages"), "other units"),
        "another file later, after all": (lazy() + frame("later", b"", b"pages", 9) + frame("make") + frame("data", b"x", b"other"), "was not announced"),
        "more memory than there is": (hello(memory=1 << 60), "the processes have"),
        "cut in a frame": (hello() + data[:40], "middle of a frame"),
        "cut after a frame": (hello() + data, "ended the connection"),
        "garbage for a manifest": (hello() + frame("data", b"{}", b"manifest.json") + frame("end", b"0" * 32, b"manifest.json", 2), "not arrived"),
    }
    running = [(name, text, start_receiver(stream)) for name, (stream, text) in streams.items()]
    for name, text, process in running:
        out, err = process.communicate(timeout=60)
        said = out.decode("utf-8", "replace")
        if process.returncode in (0, 70) or process.returncode < 0 or text not in said:
            yield f"{name}: exit {process.returncode}: {said!r} {err.decode()!r}"
    if left := glob.glob("/dev/shm/.ckpt-receive-*"):
        yield f"left: {left}"


def start_receiver(stream):
    with open("stream", "wb") as file:
        file.write(stream)
    with open("stream", "rb") as file:
        out = subprocess.Popen([CKPT, "receive"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.unlink("stream")
    return out


def leaves_nothing():
    """Of all of the above: neither the receivers' images nor the sources'."""
    def left():
        return glob.glob("/dev/shm/.ckpt-receive-*") + glob.glob("/dev/shm/ckpt-url-*")
    try:
        wait_until(lambda: not left(), "nothing is left", 10)
    except Failure:
        yield f"{left()}"


if os.geteuid() != 0:
    print("not root: a process cannot be dumped and restored")
    sys.exit(77)
if "CKPT_OWN_SHM" not in os.environ:  # what other tests leave in memory is none of ours
    os.environ["CKPT_OWN_SHM"] = "1"
    os.execvp("unshare", ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh", sys.executable, *sys.argv])
become_subreaper()
main(moves, moves_by_words, moves_lazily, waits_for_contents, gives_up_where_files_hang, survives_lazily, loses_all, refuses, forged, unknown, survives, random_moments, leaves_nothing)
