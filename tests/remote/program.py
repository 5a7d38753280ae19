#!/usr/bin/env python3
"""Speaks for a folder as ckpt(1), A PROGRAM AS A PLACE, says: program.py [--mode MODE] VERB FOLDER/NAME ..."""
import os
import sys
import time

EXISTS, MISSING = 3, 4


def files(place):
    if os.path.isfile(place):
        return [(os.path.getsize(place), "")]
    found = [os.path.join(above, name) for above, _folders, names in os.walk(place) for name in names if not name.startswith(".part-")]
    return [(os.path.getsize(path), os.path.relpath(path, place)) for path in found]


def write(place, only_if_absent):
    os.makedirs(os.path.dirname(place), exist_ok=True)
    part = f"{os.path.dirname(place)}/.part-{os.getpid()}-{time.monotonic_ns()}"
    with open(part, "wb") as out:
        out.write(sys.stdin.buffer.read())
    if not only_if_absent:
        os.rename(part, place)
        return 0
    try:
        os.link(part, place)
        return 0
    except FileExistsError:
        return EXISTS
    finally:
        os.unlink(part)


def misbehave(mode, verb, place):
    if mode == "silent":
        time.sleep(600)
    if mode == "dawdles-at-a-name" and verb == "create" and "/images/" in place:
        if os.fork() != 0:
            time.sleep(600)
        time.sleep(1.5)  # and its child would give the name then
    if mode == f"fails-to-{verb}":
        print("first line\nthe disk is on fire", file=sys.stderr)
        return 17
    if mode == "lists-nonsense" and verb == "list":
        print("many a-name")
        return 0
    if mode == "lists-paths" and verb == "list":
        print("5 ../../etc/passwd")
        return 0
    if mode == "long" and verb == "read":
        sys.stdout.buffer.write(bytes(1 << 22))
        return 0
    if mode == "short" and verb == "read":
        sys.stdout.buffer.write(b"x")
        return 0
    if mode == "lists-on" and verb == "list" and os.fork() == 0:
        time.sleep(600)
    if mode == "leaves" and verb == "read" and os.fork() == 0:
        time.sleep(600)
    return None


def main(arguments):
    mode = ""
    if arguments[0] == "--mode":
        mode, arguments = arguments[1], arguments[2:]
    if log := os.environ.get("PROGRAM_LOG"):
        with open(log, "a", encoding="utf-8") as out:
            print(repr(arguments), file=out)
    verb, place, *rest = arguments
    status = misbehave(mode, verb, place)
    if status is not None:
        return status
    if verb == "list":
        for size, name in files(place):
            print(size, name)
    elif verb == "read":
        if not os.path.isfile(place):
            return MISSING
        with open(place, "rb") as file:
            file.seek(int(rest[0]))
            sys.stdout.buffer.write(file.read(int(rest[1])))
    elif verb in ("write", "create"):
        return write(place, verb == "create")
    elif verb == "delete":
        if not os.path.isfile(place):
            return MISSING
        os.unlink(place)
    else:
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
