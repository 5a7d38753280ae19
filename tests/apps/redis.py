#!/usr/bin/env python3
"""redis-server with 100,000 keys: a client that is connected throughout and one that waits in BLPOP; an append-only file,
and a background save under way at the dump (a child process).

Variants: `unix` and `tcp` have the clients inside the tree, `outside` has them outside, by TCP.
"""
import os
import subprocess
import threading

from app import Failure, connect, expect, find, install, main, report_answers, report_round, stopping, wait_until

KEYS, BATCH = 100_000, 1000
PORT = 46379
OPTIONS = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no", "--rdb-key-save-delay", "60",
           "--enable-debug-command", "local"]


def listen_at(variant):
    return ["--port", "0", "--unixsocket", "redis.sock"] if variant == "unix" else ["--port", PORT, "--bind", "127.0.0.1"]


class Client:
    """A connection that speaks RESP2."""

    def __init__(self, variant):
        self.socket = connect("redis.sock" if variant == "unix" else PORT)
        self.stream = self.socket.makefile("rb")

    def send(self, *commands):
        wire = bytearray()
        for words in commands:
            wire += b"*%d\r\n" % len(words)
            for word in words:
                data = word if isinstance(word, bytes) else str(word).encode()
                wire += b"$%d\r\n%s\r\n" % (len(data), data)
        self.socket.sendall(wire)

    def receive(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise Failure("redis has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Failure(f"redis says {rest.decode()}")
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.receive() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def call(self, *words):
        self.send(words)
        return self.receive()


def value_of(key, generation):
    return f"{key * 2654435761 % 2**32:08x}-{generation}".encode() * (1 + key % 5)


def fill(client):
    for start in range(0, KEYS, BATCH):
        client.send(*(("SET", f"key:{key}", value_of(key, 0)) for key in range(start, start + BATCH)))
        for _ in range(BATCH):
            expect(client.receive(), b"OK", "SET")


def one_round(client, number, generations):
    """A batch of keys is read and written anew; a counter, a list, a sorted set and an expiry go along."""
    start = number * BATCH % KEYS
    keys = range(start, start + BATCH)
    found = client.call("MGET", *(f"key:{key}" for key in keys))
    for key, value in zip(keys, found):
        expect(value, value_of(key, generations[key]), f"key {key}")
        generations[key] += 1
    client.send(*(("SET", f"key:{key}", value_of(key, generations[key])) for key in keys))
    for _ in keys:
        expect(client.receive(), b"OK", "SET")
    expect(client.call("INCR", "rounds"), number, "INCR")
    expect(client.call("RPUSH", "list", number), number, "RPUSH")
    client.call("ZADD", "sorted", number % 17, f"member {number}")
    expect(client.call("ZCARD", "sorted"), number, "ZCARD")
    expect(client.call("SET", "short", number, "PX", 100_000), b"OK", "SET PX")
    expect(client.call("TTL", "short") > 90, True, "TTL")


def verify_all(client, rounds, generations):
    for start in range(0, KEYS, BATCH):
        keys = range(start, start + BATCH)
        found = client.call("MGET", *(f"key:{key}" for key in keys))
        for key, value in zip(keys, found):
            expect(value, value_of(key, generations[key]), f"key {key} in the end")
    expect(client.call("LRANGE", "list", 0, -1), [str(i).encode() for i in range(1, rounds + 1)], "the list")
    expect(client.call("GET", "rounds"), str(rounds).encode(), "the counter")


def drive(variant):
    server = None
    if variant != "outside":
        with open("redis.log", "ab") as log:
            server = subprocess.Popen([find("redis-server"), *OPTIONS, *map(str, listen_at(variant))],
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    client, waiter, popped = Client(variant), Client(variant), []
    fill(client)
    name = client.call("CLIENT", "ID")
    blocked = threading.Thread(target=lambda: popped.append(waiter.call("BLPOP", "queue", 0)))
    blocked.start()
    generations, number = [0] * KEYS, 0
    expect(client.call("BGSAVE"), b"Background saving started", "BGSAVE")
    while not stopping():
        number += 1
        one_round(client, number, generations)
        report_round(number)
    expect(popped, [], "what BLPOP gave before anything was pushed")
    expect(client.call("CLIENT", "ID"), name, "the client's id")
    expect(b"blocked_clients:1" in client.call("INFO", "clients"), True, "a blocked client")
    expect(client.call("RPUSH", "queue", "the last word"), 1, "RPUSH")
    blocked.join(20)
    expect(popped, [[b"queue", b"the last word"]], "BLPOP")
    saving = lambda: b"rdb_bgsave_in_progress:1" in client.call("INFO", "persistence")
    wait_until(lambda: not saving(), "the background save does not end", 30, 0.1)
    expect(b"rdb_last_bgsave_status:ok" in client.call("INFO", "persistence"), True, "the background save")
    verify_all(client, number, generations)
    expect(client.call("CONFIG", "SET", "rdb-key-save-delay", 0), b"OK", "CONFIG SET")
    digest = client.call("DEBUG", "DIGEST").decode()
    client.call("DEBUG", "RELOAD")  # writes all of it, and reads it again
    expect(client.call("DEBUG", "DIGEST").decode(), digest, "the digest after a reload")
    client.send(("SHUTDOWN", "NOSAVE"))
    if server is not None:
        expect(server.wait(20), 0, "the exit status of redis-server")
    report_answers({"rounds": number, "size": KEYS})


def saving_child(run):
    """Whether the child that saves is there: the forked one has a temporary file."""
    return any(name.startswith("temp-") and name.endswith(".rdb") for name in os.listdir(run.folder))


def test(run):
    install(redis_server="redis-server")
    flags = [] if run.variant == "unix" else ["--tcp-established"]
    if run.variant == "outside":
        tree = run.start("redis", [find("redis-server"), *OPTIONS, *listen_at(run.variant)])
        driver = run.start_driver()
    else:
        tree = driver = run.start_driver()
    driver.wait_rounds(10)
    driver.wait_for(lambda: saving_child(run), "saved in the background", 5)
    tree.checkpoint(*flags, between=lambda: driver.wait_rounds(5))
    before = driver.rounds()
    driver.wait_rounds(50)
    answers = driver.answers()
    expect(answers["rounds"] >= before + 50, True, "the rounds")
    tree.wait_end()
    expect(tree.ending, 0, "the exit status of the tree")


if __name__ == "__main__":
    main(test, drive, variants=("unix", "tcp", "outside"))
