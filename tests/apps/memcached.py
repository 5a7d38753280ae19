#!/usr/bin/env python3
"""memcached with four threads: connections that read, write and count on and on, items that expire.

Variants: `unix` and `tcp` have the client inside the tree, `outside` has it outside, by TCP.
"""
import os
import subprocess
import time

from app import connect, expect, find, install, main, report_answers, report_round, stopping

CONNECTIONS, KEYS = 12, 20_000
PORT = 46381


def command(variant):
    own = ["-s", "memcached.sock"] if variant == "unix" else ["-l", "127.0.0.1", "-p", PORT, "-U", 0]
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    return [find("memcached"), "-t", 4, "-m", 128, *user, *own]


class Connection:
    def __init__(self, variant):
        self.socket = connect("memcached.sock" if variant == "unix" else PORT)
        self.stream = self.socket.makefile("rb")

    def send(self, text):
        self.socket.sendall(text)

    def line(self):
        return self.stream.readline().rstrip(b"\r\n")

    def values(self):
        found = {}
        while (line := self.line()) != b"END":
            kind, key, _, size, *_ = line.split()
            expect(kind, b"VALUE", "an answer to get")
            found[key.decode()] = self.stream.read(int(size) + 2)[:-2]
        return found


def value_of(key, generation):
    return f"{key}:{generation};".encode() * (1 + key % 60)


def store(connection, key, generation, expiry=0):
    value = value_of(key, generation)
    connection.send(b"set key%d 0 %d %d\r\n%s\r\n" % (key, expiry, len(value), value))


def one_round(connections, number, generations):
    """Every connection reads twenty keys and writes them anew; all of them add to one counter."""
    of_connection = {place: [(number * 400 + place * 20 + i) % KEYS for i in range(20)] for place in range(CONNECTIONS)}
    for place, keys in of_connection.items():
        connections[place].send(b"get " + b" ".join(b"key%d" % key for key in keys) + b"\r\n")
    for place, keys in of_connection.items():
        expect(connections[place].values(), {f"key{key}": value_of(key, generations[key]) for key in keys}, "what get gives")
        for key in keys:
            generations[key] += 1
            store(connections[place], key, generations[key])
        connections[place].send(b"incr counter 1\r\n")
    for place, keys in of_connection.items():
        for _ in keys:
            expect(connections[place].line(), b"STORED", "what set gives")
        expect(connections[place].line().isdigit(), True, "what incr gives")


def drive(variant):
    server = None
    if variant != "outside":
        with open("memcached.log", "ab") as log:
            server = subprocess.Popen(list(map(str, command(variant))), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    connections = [Connection(variant) for _ in range(CONNECTIONS)]
    first, generations, number = connections[0], [0] * KEYS, 0
    for start in range(0, KEYS, 100):  # fewer than the answers that a socket holds
        for key in range(start, start + 100):
            store(first, key, 0)
        for _ in range(100):
            expect(first.line(), b"STORED", "what set gives")
    first.send(b"set counter 0 0 1\r\n0\r\n")
    expect(first.line(), b"STORED", "what set gives")
    first.send(b"set brief 0 3 5\r\nbrief\r\n")
    expect(first.line(), b"STORED", "what set gives")
    stored = time.monotonic()
    while not stopping() or time.monotonic() < stored + 5:
        number += 1
        one_round(connections, number, generations)
        report_round(number)
    first.send(b"get brief counter\r\n")
    expect(first.values(), {"counter": str(number * CONNECTIONS).encode()}, "the counter, and nothing that has expired")
    for key in range(KEYS):
        connections[key % CONNECTIONS].send(b"get key%d\r\n" % key)
        expect(connections[key % CONNECTIONS].values(), {f"key{key}": value_of(key, generations[key])}, "a key in the end")
    first.send(b"stats\r\n")
    statistics = {}
    while (line := first.line()) != b"END":
        _, name, value = line.split(None, 2)
        statistics[name] = value
    expect(statistics[b"curr_items"], str(KEYS + 1).encode(), "the number of items")
    expect(statistics[b"threads"], b"4", "the number of threads")
    if server is not None:
        server.terminate()
        expect(server.wait(20), 0, "the exit status of memcached")
    report_answers({"rounds": number})


def test(run):
    install(memcached="memcached")
    flags = [] if run.variant == "unix" else ["--tcp-established"]
    if run.variant == "outside":
        tree = run.start("memcached", command(run.variant))
        driver = run.start_driver()
    else:
        tree = driver = run.start_driver()
    driver.wait_rounds(10)
    tree.checkpoint(*flags, between=lambda: driver.wait_rounds(10))
    driver.wait_rounds(50)
    expect(driver.answers()["rounds"] >= 70, True, "the rounds")
    if run.variant != "outside":
        expect(tree.ending, 0, "the exit status of the tree")


if __name__ == "__main__":
    main(test, drive, variants=("unix", "tcp", "outside"))
