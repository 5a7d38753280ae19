#!/usr/bin/env python3
"""protect, rebuild, verify --parity under mpirun: every rank is a process with its own folder, and nothing else connects them."""
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main

LAUNCHER = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
if LAUNCHER is None or not os.path.exists(os.path.join(os.path.dirname(CKPT), "libckpt-openmpi.so")):
    print("skipped: no Open MPI here")
    sys.exit(77)


def mpirun(ranks, *arguments, local=1, **keywords):
    """`local`: so many ranks count as one node."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "LOCAL_WORLD_SIZE": str(local), "TMPDIR": "/tmp"}
    return subprocess.Popen([LAUNCHER, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), CKPT, *arguments], text=True, env=environment,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **keywords)


def run(ranks, *arguments, code=0, **keywords):
    with mpirun(ranks, *arguments, **keywords) as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == code, (arguments, process.returncode, out, err)
    return out, err


def fill(ranks, size):
    for rank in range(ranks):
        os.makedirs(f"r{rank}/inner")
        generator = random.Random(rank)
        for name in ("data", "inner/more"):
            with open(f"r{rank}/{name}", "wb") as out:
                out.write(generator.randbytes(size + 1001 * rank))
        os.chmod(f"r{rank}/data", 0o640)
        os.utime(f"r{rank}/inner", ns=(0, 1_600_000_000_123_456_789))


def state(ranks):
    out = {}
    for rank in range(ranks):
        for path in (f"r{rank}", f"r{rank}/data", f"r{rank}/inner", f"r{rank}/inner/more"):
            st = os.stat(path)
            out[path] = (st.st_mode, st.st_mtime_ns, open(path, "rb").read() if os.path.isfile(path) else None)
    return out


def lose(rank):
    shutil.rmtree(f"r{rank}")
    for path in glob.glob(f"r{rank}.ckpt-parity-*"):
        os.unlink(path)


def a_lost_rank_of_four_comes_back():
    fill(4, 2_500_000)
    before = state(4)
    out, err = run(4, "protect", "r{rank}", "--json")
    protected = json.loads(out)  # one rank tells
    if protected["ranks"] != 4 or len(protected["sets"]) != 1:
        yield f"{protected}"
    lose(2)
    out, err = run(4, "verify", "--parity", "r{rank}", "--json", code=1)
    health = json.loads(out)
    if not health["repairable"] or health["sets"][0]["from"] != [0, 1, 3]:
        yield f"{health}"
    out, err = run(4, "rebuild", "r{rank}")
    if out != "" or "brought back 1 folder and the parity of 1 rank" not in err or state(4) != before:
        yield f"not what it was: {err}"


def a_lost_node_of_two_ranks_comes_back():
    fill(6, 400_000)
    before = state(6)
    for options in (["--scheme", "rs", "--parity", "2"], ["--scheme", "xor"]):  # one set of all, its sums inside the nodes; a set for each local rank
        run(6, "protect", "r{rank}", *options, local=2)
        lose(2)
        lose(3)
        run(6, "rebuild", "r{rank}", local=2)
        if state(6) != before:
            yield f"{options}: not what it was"
    run(6, "verify", "--parity", "r{rank}", local=2)


def what_one_rank_refuses_ends_all():
    fill(4, 1000)
    shutil.rmtree("r3")
    out, err = run(4, "protect", "r{rank}", code=4)
    if "r3: cannot be looked at" not in err or "on rank 3" not in err or glob.glob("*parity*"):
        yield f"{err}"
    out, err = run(4, "protect", "r{rank}", "more", code=2)
    if "is one folder too many" not in err:
        yield f"{err}"


def what_only_one_rank_comes_upon_before_the_first_message_ends_all():
    fill(2, 1000)
    with open("nodes", "w", encoding="ascii") as out:
        out.write("0 a\n1 b\n")
    # A number of local ranks that is none does not count.
    yield from ends(["-n", "1", "env", "LOCAL_WORLD_SIZE=0", CKPT, "protect", "r{rank}", ":", "-n", "1", "env", "RANK=0", CKPT, "protect", "r{rank}"],
                    "RANK: is 0, and MPI says 1.*on rank 1", 2)
    yield from ends(["-n", "1", CKPT, "protect", "r{rank}", "--topology", "none", ":", "-n", "1", CKPT, "protect", "r{rank}", "--topology", "nodes"],
                    "none: cannot open: No such file or directory.*on rank 0", 4)


def ends(ranks, error, code):
    """All of them, soon, with the same error, told once."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "TMPDIR": "/tmp"}
    try:
        result = subprocess.run([LAUNCHER, "--allow-run-as-root", "--oversubscribe", *ranks], text=True, env=environment, stdin=subprocess.DEVNULL,
                                capture_output=True, timeout=40)
    except subprocess.TimeoutExpired:
        yield f"{ranks}: hangs"
        return
    if result.returncode != code or len(re.findall(error, result.stderr, re.S)) != 1:
        yield f"{ranks}: {result.returncode} {result.stderr}"


def a_killed_job_leaves_the_old_parity():
    fill(4, 6_000_000)
    run(4, "protect", "r{rank}")
    for delay in (0.4, 0.7):
        with mpirun(4, "protect", "r{rank}", "--scheme", "rs", start_new_session=True) as process:
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.3)  # mpirun's ranks notice that it is gone
    out, err = run(4, "verify", "--parity", "r{rank}")
    run(4, "protect", "r{rank}")
    left = glob.glob("*.ckpt-parity-*") + glob.glob(".ckpt-staging-*")
    if len(left) != 4:
        yield f"left: {left}"


main(a_lost_rank_of_four_comes_back, a_lost_node_of_two_ranks_comes_back, what_one_rank_refuses_ends_all,
     what_only_one_rank_comes_upon_before_the_first_message_ends_all, a_killed_job_leaves_the_old_parity)
