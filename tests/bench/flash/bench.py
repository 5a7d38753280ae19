#!/usr/bin/env python3
"""A save to an agent's memory, a load from it, a persist, each as a ratio to the plain way of the same run; a snapshot to a save.

usage: bench.py [GIB]    CKPT_BIN names ckpt. Uses numpy alone. NUMPY_MADVISE_HUGEPAGE=0 gives arrays of small pages.
"""
import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

CKPT = os.path.abspath(os.environ["CKPT_BIN"])
os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "plugins", "torch"))
import numpy  # noqa: E402
from ckpt_flash import Engine  # noqa: E402

TENSORS, THREADS = 32, os.cpu_count() or 1


def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def parallel_copy(pairs):
    """memcpy by as many threads as there are cores (ctypes lets go of the interpreter's lock)."""
    def some(part):
        for to, source in part:
            ctypes.memmove(to.ctypes.data, source.ctypes.data, source.nbytes)
    threads = [threading.Thread(target=some, args=(pairs[at::THREADS],)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def copy_file(source, target):
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while os.copy_file_range(reading.fileno(), writing.fileno(), 1 << 30):
            pass
        os.fsync(writing.fileno())


def cpu_seconds(pid):
    """That a process has had, threads that have ended included."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]  # fields 14 and 15
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def train(state):
    """Reads all of it, then writes all of it."""
    for value in state.values():
        value.sum()
    for value in state.values():
        value += 1


def timed_steps(engine, steps, state, **mode):
    """Medians of the time until save returns, and of that and of a step of the loop right behind it; whether all were snapshots."""
    saves, both, held = [], [], True
    for step in steps:
        began = time.perf_counter()
        saved = engine.save(step, state, **mode)
        saves.append(time.perf_counter() - began)
        train(state)
        both.append(time.perf_counter() - began)
        saved.wait()
        held = held and saved.protected_bytes > 0
    return statistics.median(saves), statistics.median(both), held


def main():
    gib = float((sys.argv[1:] or ["1"])[0])
    count = int(gib * 2**30 / TENSORS / 4)
    state = {f"t{i}": numpy.full(count, i, "f4") for i in range(TENSORS)}
    copies = {name: numpy.full_like(value, 1) for name, value in state.items()}
    pairs = [(copies[name], state[name]) for name in state]
    folder = tempfile.mkdtemp(prefix="ckpt-bench-flash-", dir=os.environ.get("CKPT_BENCH_DIR"))
    try:
        with Engine(folder + "/c", linger=60) as engine:
            prepare = timed(lambda: engine.prepare(state))
            engine.ready()
            first = timed(lambda: engine.save(1, state))
            saves, plain = [], []
            for step in range(2, 9):
                plain.append(timed(lambda: parallel_copy(pairs)))
                saves.append(timed(lambda: engine.save(step, state)))
            copy, save = statistics.median(plain), statistics.median(saves)
            alone = statistics.median(timed(lambda: train(state)) for _ in range(5))
            _, copied, _ = timed_steps(engine, range(9, 14), state)
            snapshot, held, are = timed_steps(engine, range(14, 21), state, mode="snapshot")
            loads = [timed(engine.load) for _ in range(5)]
            persist = timed(engine.persist)
            agent = engine.status()["pid"]
            while engine.status()["persisting_step"] is not None:
                time.sleep(0.01)
            before = cpu_seconds(agent)
            time.sleep(5)
            idle = (cpu_seconds(agent) - before) / 5
            files = [os.path.join(root, name) for root, _, names in os.walk(folder + "/c") for name in names]
            cp = timed(lambda: [copy_file(path, f"{folder}/copy{at}") for at, path in enumerate(files)])
            print(f"{gib:g} GiB in {TENSORS} tensors, {THREADS} threads")
            print(f"prepare               {prepare:7.3f} s")
            print(f"parallel copy         {copy:7.3f} s")
            print(f"save, median          {save:7.3f} s   {save / copy:5.2f} of the copy")
            print(f"snapshot, median      {snapshot:7.3f} s   {snapshot / save:5.2f} of a save{'' if are else ': here it is a copy'}")
            print(f"a step of the loop    {alone:7.3f} s   behind a save {copied:.3f} s in all, behind a snapshot {held:.3f} s")
            print(f"save, the first       {first:7.3f} s   {first / copy:5.2f}")
            print(f"load, mapped          {statistics.median(loads) * 1000:7.3f} ms")
            print(f"cp and fsync          {cp:7.3f} s")
            print(f"agent, idle           {idle * 1000:7.3f} ms of a processor's second")
            print(f"persist, verified     {persist:7.3f} s   {cp / persist:5.2f} of cp's speed")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
