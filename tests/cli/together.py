#!/usr/bin/env python3
"""--together under mpirun: the members' trees live in network namespaces of their own, as on nodes, and talk to each other all the time.

usage: together.py CKPT [--rounds N] [--seed N] [--only NAME]     the last three of the long form, CKPT_LONG=1
"""
import argparse
import collections
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import become_subreaper, exists_unreaped, tree_of
from nodes import Nodes, check_launcher, finish, one_of, start_together, wait_until
from prompt import CKPT, main, run

LONG = os.environ.get("CKPT_LONG") == "1"
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--rounds", type=int)
PARSER.add_argument("--seed", type=int, default=int(time.time()))
PARSER.add_argument("--only", default="")
OPTIONS = PARSER.parse_args(sys.argv[2:])
PEER = os.path.join(os.path.dirname(CKPT), "together_peer")
check_launcher(CKPT)


def state_of(path):
    """What a peer says last: how it is, received, sent."""
    try:
        with open(path, encoding="ascii") as stream:
            how, received, sent = stream.read(64).split()
            return how, int(received), int(sent)
    except (OSError, ValueError):
        return None


class Job:
    """Pairs of peers around a ring of nodes: node i listens for node i + 1. One tree a node: a shell that has both ends."""

    def __init__(self, nodes, pause=300):
        self.nodes, self.processes = nodes, []
        size = len(nodes.names)
        for i, name in enumerate(nodes.names):
            ends = [f"{PEER} listen {nodes.address(i)} {7000 + i} s{i}.l {pause}"]
            before = (i - 1) % size
            ends.append(f"{PEER} connect {nodes.address(before)} {7000 + before} s{i}.c {pause}")
            if size == 2:  # one pair is enough
                ends = [ends[0]] if i == 0 else [ends[1]]
            script = " & ".join(ends) + " & wait"
            self.processes.append(subprocess.Popen(["setsid", "nsenter", f"--net=/run/netns/{name}", "sh", "-c", script], stdin=subprocess.DEVNULL,
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        self.pids = [process.pid for process in self.processes]
        self.status = sorted(glob_of(size))
        self.goes_on("started")
        self.trees = [pid for root in self.pids for pid in tree_of(root)]

    def how(self):
        return {path: state_of(path) for path in self.status}

    def goes_on(self, when):
        """All ends receive and send more than now."""
        before = self.how()

        def further():
            now = self.how()
            bad = [f"{path}: {state}" for path, state in now.items() if state is not None and state[0] != "well"]
            if bad:
                raise AssertionError(f"{when}: {bad}")
            return all(now[path] and (before[path] is None or (now[path][1] > before[path][1] and now[path][2] > before[path][2])) for path in self.status)

        wait_until(further, f"{when}: {before}", 60)

    def wait_ended(self):
        """All of the trees: those whose parents are gone are our children."""
        wait_until(lambda: not any([exists_unreaped(pid) for pid in self.trees]), "the job has ended")

    def end(self):
        for pid in self.trees:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait_ended()


def glob_of(size):
    return ["s0.l", "s1.c"] if size == 2 else [f"s{i}.{end}" for i in range(size) for end in "lc"]


def pids(job):
    return "-p " + one_of(job.pids)


def dump(job, folder, *arguments, verb="dump", code=0):
    return finish(start_together(CKPT, len(job.pids), verb, "-f", folder, *arguments, member=pids(job)), code)


def restore(job, folder, *arguments, code=0, member="", names=None):
    names = names or job.nodes.names
    where = "--join-ns net:/run/netns/" + one_of(names) + " "
    return finish(start_together(CKPT, len(job.pids), "restore", "-f", folder, "-d", *arguments, member=where + member), code)


def left_over(folder):
    return [name for name in os.listdir(".") if name.startswith(".ckpt-staging")] + (os.listdir(folder) if os.path.exists(folder) else [])


def with_job(size, work, worse=None, **keywords):
    nodes = Nodes(size, worse)
    job = None
    try:
        job = Job(nodes, **keywords)
        yield from work(job)
    finally:
        if job is not None:
            job.end()
        nodes.remove()
        for path in glob.glob("s*.[lc]"):
            os.unlink(path)


def a_pair_goes_on_where_both_ended():
    """On nodes that have other addresses by then."""
    def work(job):
        dump(job, "before", verb="pre-dump")
        job.goes_on("after the pre-dump")
        dump(job, "now")
        job.wait_ended()
        with open("now/job.json", encoding="ascii") as stream:
            described = json.load(stream)
        if [part["host"] for part in described["parts"]] != [os.uname().nodename] * 2 or [part["connections"] for part in described["parts"]] != [1, 1]:
            yield f"{described}"
        sound = run("verify", "now")
        if sound.returncode != 0 or "2 parts" not in sound.stderr:
            yield f"{sound}"
        os.mkdir("mixed")
        shutil.copy("now/job.json", "mixed")
        shutil.copytree("now/rank-0", "mixed/rank-0")
        shutil.copytree("before/rank-1", "mixed/rank-1")
        out, err = restore(job, "mixed", code=1)
        if "mixed/rank-1: is another image than job" not in err or "(rank 1 on " not in err or any(map(exists_unreaped, job.trees)):
            yield f"{err}"
        found = run("list", ".", "--json")
        states = {os.path.basename(one["path"]): one["state"] for one in json.loads(found.stdout)["jobs"]}
        if states != {"before": "whole", "now": "whole", "mixed": "damaged"}:
            yield f"{states}"
        addresses = [job.nodes.address(0), job.nodes.address(1)]
        out, err = restore(job, "now", "--map-address", f"{addresses[1]}=203.0.113.9", code=2)
        if "203.0.113.9" not in err or any(map(exists_unreaped, job.trees)):
            yield f"{err}"
        job.nodes.move(78)
        mapped = [word for i in (0, 1) for word in ("--map-address", f"{addresses[i]}={job.nodes.address(i)}")]
        restore(job, "now", *mapped)
        job.goes_on("after the restore")
        removed = run("rm", "before", "now")
        if removed.returncode != 0 or os.path.exists("now") or os.path.exists("before"):
            yield f"{removed}"
    yield from with_job(2, work)


def what_fails_leaves_all_going_on():
    """A connection to others; the job's description cannot be written when all parts are there."""
    def work(job):
        with subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
            out, err = finish(start_together(CKPT, 2, "dump", "-f", "refused", member=f"-p {one_of([job.pids[0], other.pid])}"), 6)
            ours = f"{job.nodes.address(0)}:7000"
            if ours not in err or "--tcp-established" not in err or "(rank 0 on " not in err or os.path.exists("refused"):
                yield f"{err} {os.listdir()}"
            if other.poll() is not None:
                yield "the other member's process has ended"
            job.goes_on("after the refusal")
            other.kill()
        os.makedirs("taken/job.json")
        out, err = dump(job, "taken", code=2)
        if "taken/job.json: is there already, and not of ckpt" not in err or os.listdir("taken") != ["job.json"]:
            yield f"{err} {os.listdir('taken')}"
        process = start_together(CKPT, 2, "dump", "-f", "full", member=pids(job))
        while not os.path.isdir("full") and process.poll() is None:
            time.sleep(0.001)
        os.mkdir("full/job.json")  # the last thing that is written cannot be
        out, err = finish(process, 2)
        if "full/job.json: is there already (" not in err or os.listdir("full") != ["job.json"]:
            yield f"{err} {os.listdir('full')}"
        job.goes_on("after the last step failed")
    yield from with_job(2, work)


def ckpts_of(folder):
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and cmdline(pid)[:1] == [CKPT] and folder in cmdline(pid)]


def a_killed_member_leaves_all_going_on():
    """Or there is an image of all."""
    def work(job):
        rng = random.Random(5)
        whole = 0
        for turn in range(100 if LONG else 1):
            folder = f"killed{turn}"
            process = start_together(CKPT, 2, "dump", "-f", folder, member=pids(job), start_new_session=True)
            time.sleep(0.3 + 0.4 * rng.random())
            found = ckpts_of(folder)
            victim = rng.choice([*found, process.pid]) if found else None
            if victim:
                os.kill(victim, signal.SIGKILL)
            process.communicate(timeout=60)
            wait_until(lambda: not ckpts_of(folder), "all ckpts have ended")
            if os.path.exists(f"{folder}/job.json"):
                whole += 1
                job.end()  # whoever was cut off from the others in the last moment goes on
                restore(job, folder)
            job.goes_on(f"after kill {turn}")
            if [name for name in os.listdir() if name.startswith(".ckpt")]:
                yield f"left: {os.listdir()}"
            shutil.rmtree(folder, ignore_errors=True)
        if LONG:
            print(f"100 kills: {whole} times there was a whole image, else all went on")
    yield from with_job(2, work)


def stop_of(pid):
    """Whether it stands still for its tracer."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
        return stream.read().rpartition(")")[2].split()[0] == "t"


def signal_all(pids, number):
    """Those that have not just ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def a_member_that_hangs_holds_nobody_for_long():
    """Stopped at a moment at which all trees stand still: before all know that, or after it."""
    def work(job):
        for turn in range(20):
            folder = f"hung{turn}"
            process = start_together(CKPT, 2, "dump", "-f", folder, "--hold-limit", "1", "--timeout", "1", member=pids(job), start_new_session=True)
            hung = []
            while process.poll() is None and not hung:
                if all(exists_unreaped(pid) and stop_of(pid) for pid in job.pids):
                    time.sleep(0.002 * (turn % 5))
                    hung = [pid for pid in ckpts_of(folder) if str(job.pids[1]) in cmdline(pid)]
                    signal_all(hung, signal.SIGSTOP)
            if not os.path.exists(f"{folder}/job.json"):
                wait_until(lambda: not stop_of(job.pids[0]), "the other tree goes on", 20)
            signal_all(hung, signal.SIGCONT)
            process.wait(60)
            if process.returncode == 0:  # it was done already, or the trees stood still for a round before the last
                finish(process)
                job.wait_ended()
                restore(job, folder)
                shutil.rmtree(folder)
                continue
            _, err = finish(process, 7)
            if left_over(folder):
                yield f"{err}, {left_over(folder)}"
            job.goes_on("after one has hung")
            if "--hold-limit" in err:
                return
        yield "twenty dumps, and none had a member stopped once all trees stood still"
    yield from with_job(2, work)


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return [word.decode(errors="replace") for word in stream.read().split(b"\0")]
    except OSError:
        return []


def rounds(size, count, worse=None, **keywords):
    """Dumped with all ended, restored, again and again; some dumps leave the job running. Prints for how long each member stood still."""
    def work(job):
        stops = []
        for turn in range(count):
            stays = turn % 3 == 2
            dump(job, "image", *(["-R"] if stays else []))
            with open("image/job.json", encoding="ascii") as stream:
                stops.append([part["frozen_us"] / 1000 for part in json.load(stream)["parts"]])
            if not stays:
                job.wait_ended()
                restore(job, "image")
            job.goes_on(f"round {turn} of {size} members, {worse}")
            shutil.rmtree("image")
        line = f"{worse[0]:.0%} lost, {worse[1] * 1000:.0f} ms" if worse else "a good line"
        print(f"{size} members, {line}, {count} rounds: the slowest stood still for {', '.join(f'{stop:.1f}' for stop in map(max, stops))} ms; "
              f"between slowest and fastest at most {max(max(stop) - min(stop) for stop in stops):.1f} ms", flush=True)
        yield from ()
    yield from with_job(size, work, worse, **keywords)


REPLICA = """
import mmap, os, random, sys, time
memory = mmap.mmap(-1, 68 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:64 << 20] = random.Random(7).randbytes(64 << 20)  # the same in all
memory[64 << 20:66 << 20] = os.urandom(2 << 20)
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.05)
    memory[67 << 20] = (memory[67 << 20] + 1) % 256
"""


def content_of(folder):
    found = {}
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "children"]  # say where others lie on this host
        for name in names:
            with open(os.path.join(above, name), "rb") as stream:
                found[os.path.relpath(os.path.join(above, name), folder)] = stream.read()
    return found


def replicas_are_stored_once():
    """Four ranks with the same 64 MiB and 2 MiB of their own, a pre-dump and the dump that leans on it: a store has the 64 MiB once."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([sys.executable, "-S", "-c", REPLICA, f"ready.{i}"], start_new_session=True, **quiet) for i in range(4)]
    try:
        wait_until(lambda: all(os.path.exists(f"ready.{i}") for i in range(4)), "the ranks are there")
        member = "-p " + one_of([process.pid for process in processes])
        finish(start_together(CKPT, 4, "pre-dump", "-f", "saved/before", member=member), 0)
        finish(start_together(CKPT, 4, "dump", "-R", "-f", "saved/now", "--prev", "saved/before", member=member), 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    pushed = run("push", "saved/now", "--store", "store", "--json")
    if pushed.returncode != 0:
        yield f"{pushed}"
        return
    report = json.loads(pushed.stdout)
    least, most = (64 + 4 * 2) << 20, (64 + 4 * (2 + 12)) << 20  # the rest: four interpreters
    if (report["kind"], report["format"], report["images"]) != ("process", "job", 8) or not least <= report["stored_bytes"] <= most:
        yield f"{report}"
    if report["bytes"] < 4 * 66 << 20:
        yield f"the images are too small for that: {report}"
    print(f"four ranks: {report['bytes'] >> 20} MiB of images take {report['stored_bytes'] >> 20} MiB of the store")
    memory = json.loads(run("inspect", "saved/before", "--stats", "--json").stdout)["memory"]
    if memory["parts"] != 4 or memory["estimated"] or not 3 * 64 << 20 <= memory["common_bytes"] <= memory["bytes"] - ((64 + 4 * 2) << 20):
        yield f"{memory}"
    with open("ranks", "w", encoding="ascii") as stream:
        stream.write("".join(f"{rank} n{rank} dp={rank // 2} tp={rank % 2}\n" for rank in range(4)))
    memory = json.loads(run("inspect", "saved/before", "--stats", "--json", "--topology", "ranks").stdout)["memory"]
    if [one["ranks"] for one in memory["replicas"]] != [[0, 2], [1, 3]] or not 2 * 64 << 20 <= memory["common_bytes"] < 3 * 64 << 20:
        yield f"of replicas alone: {memory}"
    pulled = run("pull", "now", "--store", "store", "--dir", "back", "--json")
    if pulled.returncode != 0 or not json.loads(pulled.stdout)["path"].endswith("/back/now") or content_of("back") != content_of("saved"):
        yield f"{pulled}: {sorted(content_of('back'))}, {sorted(content_of('saved'))}"
    for path in ("back/now", "back/before"):
        sound = run("verify", path)
        if sound.returncode != 0 or "4 parts" not in sound.stderr:
            yield f"{path}: {sound}"
    # A job alone, whose folder is all that is pushed; and one that lacks a part.
    alone = run("push", "back/before", "--store", "store", "--json")
    if alone.returncode != 0 or json.loads(alone.stdout)["new_chunks"] > 20 or run("pull", "before", "--store", "store", "--dir", "alone").returncode != 0:
        yield f"{alone}"
    elif content_of("alone") != content_of("back/before") or run("verify", "alone").returncode != 0:
        yield f"alone: {sorted(content_of('alone'))}"
    shutil.rmtree("back/now/rank-2")
    lacking = run("push", "back/now", "--store", "store", "--name", "lacking")
    if lacking.returncode != 4 or "rank-2" not in lacking.stderr or "all of its parts" not in lacking.stderr:
        yield f"{lacking}"


TRAINER = """
import os, sys, time
memory = os.urandom(int(sys.argv[2]) << 20)
open(sys.argv[1], "w").close()
time.sleep(1000)
"""


@contextlib.contextmanager
def trainers(*sizes):
    """Processes with so many MiB, which say by RANK that they are the ranks from 0 on."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    processes = [subprocess.Popen([sys.executable, "-S", "-c", TRAINER, f"there.{rank}", str(size)], env={**os.environ, "RANK": str(rank)}, **quiet)
                 for rank, size in enumerate(sizes)]
    try:
        wait_until(lambda: all(os.path.exists(f"there.{rank}") for rank in range(len(sizes))), "the trainers are there")
        yield processes
        if any(process.poll() is not None for process in processes):
            raise AssertionError("a process has ended")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def last_write(part):
    return max(os.stat(path).st_mtime_ns for path in glob.glob(f"{part}/pages*"))


def first_replicas_are_written_first():
    """--topology: the part that has the first replica is on the disk before the other one, which is much smaller, is begun."""
    with trainers(96, 1) as processes:
        member = "-p " + one_of([process.pid for process in processes])
        take = ["dump", "-R", "-f", "job", "--iterations", "0", "--no-compress", "--max-memory", "512M", "--topology"]
        for text, words in (("0 a dp=0\n1 b dp=1\n2 b dp=2\n", "tells of rank 2, which no part has"), ("0 a dp=0\n1 b tp=1\n", "other coordinates"),
                            ("0 a dp=0\n", "says nothing of rank 1, which rank-1 has")):
            with open("nodes", "w", encoding="ascii") as stream:
                stream.write(text)
            _, err = finish(start_together(CKPT, 2, *take, "nodes", member=member), 2)
            if words not in err or left_over("job"):
                yield f"{text!r}: {err}"
        with open("nodes", "w", encoding="ascii") as stream:
            stream.write("0 node-a rack-1 dp=0 tp=0\n1 node-b rack-2 dp=1 tp=0\n")
        finish(start_together(CKPT, 2, *take, "nodes", member=member), 0)
    if last_write("job/rank-0") >= last_write("job/rank-1"):
        yield "the second replica was written before the first one was whole"
    with open("job/job.json", encoding="ascii") as stream:
        topology = json.load(stream)["topology"]
    wanted = {"rank": 1, "part": "rank-1", "node": "node-b", "rack": "rack-2", "groups": {"dp": 1, "tp": 0}}
    if len(topology) != 2 or topology[1] != wanted:
        yield f"{topology}"
    shown = run("inspect", "job").stdout
    if not all(word in shown for word in ("DP", "TP", "node-b", "rack-2")):
        yield shown
    alone = run("dump", "-p", str(os.getpid()), "-f", "alone", "--topology", "nodes")
    if alone.returncode != 2 or "needs --together" not in alone.stderr:
        yield f"{alone}"


def a_damaged_parent_of_one_fails_all():
    """--validate-sample of a job: no member falls back to another image alone."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(["sleep", "1000"], start_new_session=True, **quiet) for _ in range(2)]
    try:
        member = "-p " + one_of([process.pid for process in processes])
        finish(start_together(CKPT, 2, "pre-dump", "-f", "before", "--no-compress", member=member), 0)
        more = ["--prev", "before", "--validate-sample", "100%", "--iterations", "0"]
        for path in glob.glob("before/rank-1/pages*"):
            with open(path, "r+b") as pages:
                content = bytes(byte ^ 1 for byte in pages.read())
                pages.seek(0)
                pages.write(content)
        _, err = finish(start_together(CKPT, 2, "dump", "-f", "now", *more, member=member), 1)
        if "cannot be had from the images" not in err or "--no-prev" not in err or left_over("now"):
            yield f"{err} {os.listdir()}"
        if any(process.poll() is not None for process in processes):
            yield "a process has ended"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def long_rounds_of_two():
    yield from rounds(2, OPTIONS.rounds or 50)


def long_rounds_of_two_with_loss():
    yield from rounds(2, OPTIONS.rounds or 50, (0.01, 0.02))


def long_rounds_of_many():
    yield from rounds(4, OPTIONS.rounds or 20, (0.01, 0.02))
    yield from rounds(16, OPTIONS.rounds or 6, pause=3000)


def below(pid):
    """It, and whatever it has started: nothing where it has ended meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        return tree_of(pid)
    return []


def victims_of(kind, job, process, folder, rng):
    """Who gets a SIGKILL: a member, which ends its courier with it; all that a node runs; or mpirun."""
    node = rng.randrange(len(job.pids))
    members = [pid for pid in ckpts_of(folder) if str(job.pids[node]) in cmdline(pid) or f"net:/run/netns/{job.nodes.names[node]}" in cmdline(pid)]
    if kind == "launcher":
        return [process.pid]
    theirs = [pid for member in members for pid in below(member)]
    return [*theirs, *below(job.pids[node])] if kind == "node" else theirs[:1]


def hit(kind, job, process, folder, rng):
    """At some moment of a verb that is under way. What becomes of it is not known."""
    wait_until(lambda: ckpts_of(folder) or process.poll() is not None, "a member has begun")
    time.sleep(0.8 * rng.random())
    signal_all(victims_of(kind, job, process, folder, rng), signal.SIGKILL)
    process.communicate(timeout=120)
    wait_until(lambda: not ckpts_of(folder), "all ckpts have ended", 60)


def restored_in_the_end(job, folder, rng):
    """Something is killed in the middle of a restore: then all go on, or none, and the image is as good as before."""
    where = "--join-ns net:/run/netns/" + one_of(job.nodes.names)
    process = start_together(CKPT, len(job.pids), "restore", "-f", folder, "-d", member=where, start_new_session=True)
    hit(rng.choice(["member", "launcher"]), job, process, folder, rng)
    alive = [pid for pid in job.trees if exists_unreaped(pid)]
    if len(alive) == len(job.trees):
        return "all went on"
    wait_until(lambda: not any(map(exists_unreaped, job.trees)), f"none goes on: {alive} do")
    restore(job, folder)
    return "none went on"


def long_random_losses():
    """A member, a node or the launcher is killed in the middle, of dumps and of restores: all go on, or all are whole images."""
    def work(job):
        rng, seen = random.Random(OPTIONS.seed), collections.Counter()
        dump(job, "image", "-R")
        last = "image"
        for turn in range(OPTIONS.rounds or 50):
            kind, folder = rng.choice(["member", "launcher", "node", "restore"]), f"image{turn}"
            print(f"round {turn}, seed {OPTIONS.seed}: {kind}", flush=True)
            if kind == "restore":
                dump(job, folder)
                job.wait_ended()
                seen[f"restore: {restored_in_the_end(job, folder, rng)}"] += 1
            else:
                hit(kind, job, start_together(CKPT, len(job.pids), "dump", "-f", folder, member=pids(job), start_new_session=True), folder, rng)
                whole = os.path.exists(f"{folder}/job.json")
                wait_until(lambda: not any(stop_of(pid) for pid in job.trees if exists_unreaped(pid)), "nobody stands still")
                seen[f"{kind}: {'a whole image' if whole else 'no image'}"] += 1
                if whole or kind == "node":  # a job that has lost a node goes on from its last image
                    job.end()
                    restore(job, folder if whole else last)
            job.goes_on(f"after round {turn}, seed {OPTIONS.seed}")
            if os.path.exists(f"{folder}/job.json"):
                shutil.rmtree(last)
                last = folder
            else:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"seed {OPTIONS.seed}, {sum(seen.values())} rounds: {dict(sorted(seen.items()))}")
        yield from ()
    yield from with_job(3, work, (0.01, 0.02))


become_subreaper()
if LONG:
    chosen = [long_rounds_of_two, long_rounds_of_two_with_loss, long_rounds_of_many, long_random_losses, a_killed_member_leaves_all_going_on]
    main(*[check for check in chosen if OPTIONS.only in check.__name__])
main(a_pair_goes_on_where_both_ended, what_fails_leaves_all_going_on, a_member_that_hangs_holds_nobody_for_long,
     a_killed_member_leaves_all_going_on, replicas_are_stored_once, first_replicas_are_written_first,
     a_damaged_parent_of_one_fails_all)
