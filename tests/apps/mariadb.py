#!/usr/bin/env python3
"""MariaDB as Debian ships it, with io_uring: a table larger than its buffer pool, so that every round reads and writes
pages; a transaction that stays open across the dump; its tables checked in the end."""
import os
import pwd
import subprocess

from app import Failure, Skip, expect, find, install, main, report_answers, report_round, ring_requests, stopping, wait_file

USER, ROWS = "mysql", 400


def as_mysql():
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": USER, "group": pwd.getpwnam(USER).pw_gid, "extra_groups": []}


def command(folder):
    return [find("mariadbd"), "--no-defaults", f"--datadir={folder}/data", f"--socket={folder}/s", "--skip-networking",
            f"--pid-file={folder}/pid", "--innodb-buffer-pool-size=8M", "--innodb-flush-method=O_DIRECT"]


class Session:
    """A client of its own, which answers line by line."""

    def __init__(self):
        self.client = subprocess.Popen([find("mariadb"), "--no-defaults", "--socket=s", "--batch", "--skip-column-names",
                                        "--unbuffered", "-u", "root"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, text):
        self.client.stdin.write(f"{text}; SELECT 'done';\n")
        self.client.stdin.flush()
        found = []
        for line in self.client.stdout:
            if line == "done\n":
                return found
            found.append(line.rstrip("\n").split("\t"))
        raise Failure(f"the client has ended after {text[:80]}")

    def value(self, text):
        return self.call(text)[0][0]


def drive(_):
    with open("mariadb.log", "ab") as log:
        server = subprocess.Popen(command(os.getcwd()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_mysql())
    wait_file("s")
    holder, worker = Session(), Session()
    worker.call("CREATE DATABASE work; USE work; CREATE TABLE log (id INT AUTO_INCREMENT PRIMARY KEY, round INT, "
                "text VARCHAR(600)) ENGINE=InnoDB; CREATE TABLE held (value INT) ENGINE=InnoDB; INSERT INTO held VALUES (0)")
    holder.call("USE work; BEGIN; UPDATE held SET value = 7")
    number = 0
    while not stopping():
        number += 1
        worker.call(f"INSERT INTO log (round, text) SELECT {number}, REPEAT(MD5(seq), 16) FROM seq_1_to_{ROWS}")
        expect(worker.value("SELECT COUNT(*), SUM(round) FROM log"), str(number * ROWS), "the rows")
        expect(worker.value("SELECT value FROM held"), "0", "what another session sees of a transaction")
        report_round(number)
    holder.call("COMMIT")
    expect(worker.value("SELECT value FROM held"), "7", "what was committed")
    expect(worker.value("SELECT SUM(round) FROM log"), str(ROWS * number * (number + 1) // 2), "the rounds")
    expect(worker.value("SELECT COUNT(*) FROM log WHERE LENGTH(text) = 512"), str(number * ROWS), "the texts")
    expect([row[-1] for row in worker.call("CHECK TABLE log, held EXTENDED")], ["OK", "OK"], "the tables")
    server.terminate()
    expect(server.wait(60), 0, "the exit status of mariadbd")
    report_answers({"rounds": number})


def requests(run):
    with open(f"{run.folder}/pid", encoding="ascii") as stream:
        return ring_requests(int(stream.read()))


def test(run):
    install(mariadbd="mariadb-server", mariadb_install_db="mariadb-server")
    if os.geteuid() == 0 and USER not in (entry.pw_name for entry in pwd.getpwall()):
        raise Skip(f"there is no user {USER}")
    data = os.path.join(run.folder, "data")
    made = subprocess.run([find("mariadb-install-db"), "--no-defaults", f"--user={USER}", f"--datadir={data}",
                           "--auth-root-authentication-method=normal", "--skip-test-db"], capture_output=True, check=False,
                          text=True)
    expect(made.returncode, 0, f"the exit status of mariadb-install-db ({made.stdout[-300:]})")
    driver = run.start_driver()
    for _ in range(2):
        driver.wait_rounds(10)
        before = requests(run)
        expect(before > 100, True, f"it works through io_uring ({before} requests)")
        driver.checkpoint(between=lambda: driver.wait_rounds(10))
    driver.wait_rounds(10)
    expect(requests(run) > before, True, "it works through io_uring after its restore")
    driver.answers()


if __name__ == "__main__":
    main(test, drive)
