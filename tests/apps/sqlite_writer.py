#!/usr/bin/env python3
"""sqlite3 writes within a transaction that stays open across the dump, with its locks, its cache spilled to the file, and in
write-ahead mode its shared index.

Variants: `wal` and `rollback`, the two kinds of journal.
"""
import hashlib
import os
import sqlite3
import time

from app import Failure, expect, main, report_answers, report_round, stopping

DATABASE = "data.db"
BEFORE = 5000  # rows that were committed before


def row(number):
    return number, hashlib.sha256(str(number).encode()).hexdigest() * 8, number * number % 1000


def open_database(**options):
    return sqlite3.connect(DATABASE, isolation_level=None, **options)


def drive(variant):
    writer = open_database()
    expect(writer.execute(f"PRAGMA journal_mode={'wal' if variant == 'wal' else 'delete'}").fetchone()[0],
           "wal" if variant == "wal" else "delete", "the journal mode")
    writer.execute("PRAGMA cache_size=50")  # pages: the transaction goes to the file before it is committed
    writer.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT, rest INTEGER)")
    writer.execute("CREATE INDEX by_rest ON rows (rest)")
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO rows VALUES (?, ?, ?)", (row(number) for number in range(BEFORE)))
    writer.execute("COMMIT")
    writer.execute("BEGIN IMMEDIATE")
    number = 0
    while not stopping():
        start = BEFORE + number * 100
        writer.executemany("INSERT INTO rows VALUES (?, ?, ?)", (row(n) for n in range(start, start + 100)))
        writer.execute("UPDATE rows SET rest = rest + 1 WHERE number = ?", (number % BEFORE,))
        expect(writer.execute("SELECT count(*) FROM rows").fetchone()[0], start + 100, "the rows that the writer sees")
        number += 1
        report_round(number)
        time.sleep(0.005)
    writer.execute("COMMIT")
    expect(writer.execute("PRAGMA integrity_check").fetchone()[0], "ok", "the integrity check")
    writer.close()
    report_answers({"rounds": number})


def expect_locked():
    """Whoever else wants to write has to wait for the writer."""
    other = open_database(timeout=0.2)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as busy:
        expect("locked" in str(busy), True, f"a locked database: {busy}")
    else:
        raise Failure("the writer's lock is gone")
    finally:
        other.close()


def expect_unseen():
    """Whoever reads meanwhile sees what was committed; with a rollback journal nobody reads while pages are spilled."""
    other = open_database(timeout=0.2)
    expect(other.execute("SELECT count(*) FROM rows").fetchone()[0], BEFORE, "the rows that are committed")
    other.close()


def test(run):
    os.chdir(run.folder)
    writer = run.start_driver()
    writer.wait_rounds(30)
    expect_locked()
    writer.checkpoint(between=lambda: writer.wait_rounds(30))
    expect_locked()
    if run.variant == "wal":
        expect_unseen()
    writer.wait_rounds(30)
    rounds = writer.answers()["rounds"]
    reader = open_database()
    expect(reader.execute("PRAGMA integrity_check").fetchone()[0], "ok", "the integrity check")
    found = reader.execute("SELECT number, text, rest FROM rows ORDER BY number").fetchall()
    expect(len(found), BEFORE + rounds * 100, "the rows in the end")
    for number, line in enumerate(found):
        wanted = row(number)
        expect(line, (*wanted[:2], wanted[2] + sum(1 for r in range(number, rounds, BEFORE) if number < BEFORE)), "a row")
    reader.close()


if __name__ == "__main__":
    main(test, drive, variants=("wal", "rollback"))
