#!/usr/bin/env python3
"""PostgreSQL: a transaction open across the dump with a cursor and locks, a session that waits for one of its locks, one
that works on, one that listens for notifications; pgbench on the restored server; its files checked in the end.

Variants: `unix` and `tcp` have the client inside the tree, `outside` has it outside, by TCP.
"""
import os
import pwd
import struct
import subprocess
import time

from app import Failure, Skip, connect, expect, find, install, main, report_answers, report_round, stopping

PORT = 46382
USER = "postgres"


def as_postgres():
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    group = pwd.getpwnam(USER).pw_gid
    return {"user": USER, "group": group, "extra_groups": []}


def make_cluster(folder):
    data = os.path.join(folder, "data")
    os.mkdir(data, 0o700)
    if os.geteuid() == 0:
        user = pwd.getpwnam(USER)
        os.chown(data, user.pw_uid, user.pw_gid)
    done = subprocess.run([find("initdb"), "-D", data, "-U", USER, "-A", "trust", "-k", "-N", "--no-locale", "-E", "UTF8"],
                          stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd=data, text=True, **as_postgres())
    if done.returncode != 0:
        raise Failure(f"initdb: {done.stderr}")


def command(variant, folder):
    listen = "127.0.0.1" if variant != "unix" else ""
    return [find("postgres"), "-D", f"{folder}/data", "-k", folder, "-p", str(PORT), "-c", f"listen_addresses={listen}",
            "-c", "shared_buffers=32MB", "-c", "max_connections=20", "-c", "autovacuum_naptime=1s"]


class Session:
    """A connection that speaks the simple part of the protocol, version 3."""

    def __init__(self, variant):
        self.notified = []
        deadline = time.monotonic() + 30
        while True:
            self.socket = connect(f".s.PGSQL.{PORT}" if variant == "unix" else PORT)
            self.stream = self.socket.makefile("rb")
            body = struct.pack("!i", 196608) + f"user\0{USER}\0database\0postgres\0\0".encode()
            self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
            try:
                self.receive()
                return
            except Failure as refused:
                if "starting up" not in str(refused) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def send(self, text):
        body = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)

    def receive(self):
        """The rows of the answer, as lists of text."""
        rows, error = [], None
        while True:
            head = self.stream.read(5)
            if len(head) < 5:
                raise error or Failure("PostgreSQL has closed the connection")
            kind, (size,) = head[:1], struct.unpack("!i", head[1:])
            body = self.stream.read(size - 4)
            if kind == b"E":
                error = Failure("PostgreSQL says " + "; ".join(f[1:].decode() for f in body.split(b"\0") if f[:1] == b"M"))
            elif kind == b"D":
                rows.append(self.row(body))
            elif kind == b"A":
                self.notified.append(body[4:].split(b"\0")[1].decode())
            elif kind == b"Z":
                if error is not None:
                    raise error
                return rows

    @staticmethod
    def row(body):
        fields, at = [], 2
        for _ in range(struct.unpack("!h", body[:2])[0]):
            (size,) = struct.unpack("!i", body[at:at + 4])
            at += 4
            fields.append(None if size < 0 else body[at:at + size].decode())
            at += max(size, 0)
        return fields

    def call(self, text):
        self.send(text)
        return self.receive()

    def value(self, text):
        return self.call(text)[0][0]


def one_round(number, holder, worker):
    """Within the open transaction, and beside it."""
    holder.call(f"SAVEPOINT round; INSERT INTO rows SELECT {number}, generate_series(1, 50), repeat('x', 200)")
    if number % 3 == 0:
        holder.call("ROLLBACK TO round")
    found = holder.call("FETCH 100 FROM walk")
    expect([int(row[0]) for row in found], list(range(number * 100 - 99, number * 100 + 1)), "what the cursor gives")
    expect(int(holder.value("SELECT count(*) FROM rows")), 50 * (number - number // 3), "the rows that the transaction sees")
    expect(worker.value("SELECT count(*) FROM rows"), "0", "the rows that another session sees")
    worker.call(f"UPDATE counter SET value = value + 1; INSERT INTO log VALUES ({number}, md5('{number}'))")
    expect(worker.value("SELECT value FROM counter"), str(number), "the counter")
    worker.call(f"NOTIFY news, '{number}'")


def run_pgbench(variant):
    where = ["-h", os.getcwd() if variant == "unix" else "127.0.0.1", "-p", str(PORT), "-U", USER]
    for more in (["-i", "-q", "-s", "1"], ["-c", "4", "-j", "2", "-T", "3"]):
        done = subprocess.run([find("pgbench"), *where, *more, "postgres"], stdin=subprocess.DEVNULL, capture_output=True,
                              check=False, text=True)
        expect(done.returncode, 0, f"the exit status of pgbench ({done.stderr[-300:]})")


def drive(variant):
    server = None
    if variant != "outside":
        with open("postgres.log", "ab") as log:
            server = subprocess.Popen(command(variant, os.getcwd()), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      **as_postgres())
    holder, worker, waiter, listener = (Session(variant) for _ in range(4))
    backends = [session.value("SELECT pg_backend_pid()") for session in (holder, worker, waiter, listener)]
    worker.call("CREATE TABLE rows (round int, place int, text text); CREATE TABLE counter (value int); "
                "CREATE TABLE log (number int PRIMARY KEY, text text); INSERT INTO counter VALUES (0); "
                "CREATE TABLE locked (name text, value int); INSERT INTO locked VALUES ('row', 0)")
    listener.call("LISTEN news")
    holder.call("BEGIN; UPDATE locked SET value = value + 1; DECLARE walk CURSOR FOR SELECT generate_series(1, 1000000)")
    waiter.send("UPDATE locked SET value = value * 10 RETURNING value")
    number = 0
    while not stopping():
        number += 1
        one_round(number, holder, worker)
        report_round(number)
    holder.call("COMMIT")
    expect(waiter.receive(), [["10"]], "what the session that waited gets")
    expect([s.value("SELECT pg_backend_pid()") for s in (holder, worker, waiter, listener)], backends, "the backends")
    expect(listener.notified, [str(n) for n in range(1, number + 1)], "the notifications")
    expect(int(worker.value("SELECT count(*) FROM rows")), 50 * (number - number // 3), "the rows that are committed")
    expect(worker.value("SELECT count(*) FROM log WHERE text = md5(number::text)"), str(number), "the log")
    run_pgbench(variant)
    sums = worker.call("SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), "
                       "(SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(delta) FROM pgbench_history)")[0]
    expect(len(set(sums)), 1, f"one sum in all of pgbench's tables ({sums})")
    for statement in ("VACUUM FULL ANALYZE", "CHECKPOINT"):
        worker.call(statement)
    if server is not None:
        server.terminate()  # waits for its clients
        for session in (holder, worker, waiter, listener):
            session.stream.close()
            session.socket.close()
        expect(server.wait(30), 0, "the exit status of postgres")
    report_answers({"rounds": number})


def remove_segment(folder):
    """A server that was killed leaves the System V segment that guards its data folder."""
    try:
        with open(f"{folder}/data/postmaster.pid", encoding="ascii") as stream:
            words = [line.split() for line in stream][6]
        subprocess.run(["ipcrm", "-m", words[1]], capture_output=True, check=False)
    except (OSError, IndexError):
        pass


def test(run):
    install(initdb="postgresql", pgbench="postgresql")
    if os.geteuid() == 0 and USER not in (entry.pw_name for entry in pwd.getpwall()):
        raise Skip(f"there is no user {USER}")
    run.tidy = lambda: remove_segment(run.folder)
    make_cluster(run.folder)
    flags = [] if run.variant == "unix" else ["--tcp-established"]
    if run.variant == "outside":
        tree = run.start("postgres", command(run.variant, run.folder), **as_postgres())
        driver = run.start_driver()
    else:
        tree = driver = run.start_driver()
    driver.wait_rounds(20)
    tree.checkpoint(*flags, between=lambda: driver.wait_rounds(20))
    driver.wait_rounds(50)
    expect(driver.answers()["rounds"] >= 90, True, "the rounds")
    if run.variant == "outside":
        os.kill(tree.pid, 15)
    tree.wait_end()
    expect(tree.ending, 0, "the exit status of the tree")
    checked = subprocess.run([find("pg_checksums"), "--check", "-D", f"{run.folder}/data"], capture_output=True, check=False,
                             text=True, cwd="/")
    expect(checked.returncode, 0, f"the checksums of the data files ({checked.stdout}{checked.stderr})")


if __name__ == "__main__":
    main(test, drive, variants=("unix", "tcp", "outside"))
