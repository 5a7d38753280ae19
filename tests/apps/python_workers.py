#!/usr/bin/env python3
"""python3 with multiprocessing (a pool, a queue, a lock, a barrier), shared memory and asyncio (timers, a unix server with
its client, a subprocess), all at once. What comes out must be what an uninterrupted run gives."""
import asyncio
import hashlib
import multiprocessing
import os
import time
from multiprocessing import shared_memory

from app import expect, main, report_answers, report_round

ROUNDS, WORKERS, CELLS = 120, 3, 1 << 16


def work(seed):
    digest = hashlib.sha256(str(seed).encode())
    for _ in range(20_000):
        digest.update(digest.digest())
    return digest.hexdigest()


def count_up(name, lock, barrier, results, place):
    """One of several that add to the same cells, in turns that a lock and a barrier give."""
    memory = shared_memory.SharedMemory(name)
    cells = memory.buf.cast("Q")
    total = 0
    for turn in range(ROUNDS):
        with lock:
            cells[turn % CELLS] += place + 1
            total += 1
        barrier.wait()
        if cells[turn % CELLS] != sum(range(1, WORKERS + 1)):
            results.put((place, f"cell {turn} holds {cells[turn % CELLS]}"))
            return
        barrier.wait()
        time.sleep(0.03)
    cells.release()
    memory.close()
    results.put((place, total))


async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def converse(path, rounds, seen):
    reader, writer = await asyncio.open_unix_connection(path)
    for number in range(rounds):
        writer.write(f"message {number}\n".encode())
        await writer.drain()
        expect(await reader.readline(), f"MESSAGE {number}\n".encode(), "an echo")
        seen["echoes"] += 1
        await asyncio.sleep(0.02)
    writer.close()


async def tick(seen, rounds):
    loop = asyncio.get_running_loop()
    for number in range(rounds):
        before = loop.time()
        await asyncio.sleep(0.05)
        expect(loop.time() - before >= 0.049, True, "a timer that is not early")
        seen["ticks"] += 1


async def talk_to_child(rounds, seen):
    child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    for number in range(rounds):
        child.stdin.write(f"{number * number}\n".encode())
        expect(await child.stdout.readline(), f"{number * number}\n".encode(), "what cat says")
        seen["cat"] += 1
        await asyncio.sleep(0.03)
    child.stdin.close()
    expect(await child.wait(), 0, "the exit status of cat")


async def all_at_once(pool, rounds):
    seen = {"echoes": 0, "ticks": 0, "cat": 0}
    path = f"asyncio-{os.getpid()}.sock"
    server = await asyncio.start_unix_server(serve, path)
    aside = [asyncio.create_task(job) for job in (converse(path, rounds * 2, seen), tick(seen, rounds),
                                                  talk_to_child(rounds, seen))]
    digest = hashlib.sha256()
    for number in range(rounds):
        pending = pool.map_async(work, range(number * 4, number * 4 + 4))
        while not pending.ready():
            await asyncio.sleep(0.005)
        for found in pending.get():
            digest.update(found.encode())
        report_round(number + 1)
    await asyncio.gather(*aside)
    server.close()
    await server.wait_closed()
    return {**seen, "pool": digest.hexdigest()}


def drive(_):
    context = multiprocessing.get_context("fork")
    memory = shared_memory.SharedMemory(create=True, size=CELLS * 8)
    lock, barrier, results = context.Lock(), context.Barrier(WORKERS), context.Queue()
    counters = [context.Process(target=count_up, args=(memory.name, lock, barrier, results, place)) for place in range(WORKERS)]
    for counter in counters:
        counter.start()
    with context.Pool(2) as pool:
        answers = asyncio.run(all_at_once(pool, ROUNDS))
    for counter in counters:
        counter.join(20)
        expect(counter.exitcode, 0, "a worker's exit code")
    answers["counted"] = sorted(results.get(timeout=5) for _ in counters)
    answers["memory"] = hashlib.sha256(bytes(memory.buf)).hexdigest()
    memory.close()
    memory.unlink()
    report_answers(answers)


def test(run):
    straight = run.start_driver("straight")
    interrupted = run.start_driver("interrupted")
    interrupted.wait_rounds(ROUNDS // 6)
    interrupted.checkpoint(between=lambda: interrupted.wait_rounds(ROUNDS // 6))
    expect(interrupted.rounds() < ROUNDS, True, "it was dumped in the middle of its work")
    interrupted.wait_rounds(5)
    expect(interrupted.answers(), straight.answers(), "the answers of the interrupted run")


if __name__ == "__main__":
    main(test, drive)
