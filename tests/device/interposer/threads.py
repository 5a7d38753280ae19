#!/usr/bin/env python3
"""The agent has its thread in a program with much thread-local memory; where it cannot have one, that is said.

usage: threads.py CKPT STANDIN BIG_TLS NO_THREAD
"""
import contextlib
import os
import subprocess
import sys

CKPT, STANDIN, BIG_TLS, NO_THREAD = sys.argv[1:5]
ENVIRONMENT = {**os.environ, "CKPT_CUDA_DRIVER": STANDIN}


def names_of_threads(pid):
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="ascii") as stream:
            yield stream.read().strip()


@contextlib.contextmanager
def started(**more):
    command = [CKPT, "run", "--", BIG_TLS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={**ENVIRONMENT, **more}, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        if program.stdout.readline() != "0\n":
            raise SystemExit(f"cuInit fails: {program.communicate()}")
        yield program
        program.stdin.close()
        if program.wait(30) != 0:
            raise SystemExit(f"exit {program.returncode}")


def checked(pid):
    return subprocess.run([CKPT, "check", "-p", str(pid)], env=ENVIRONMENT, capture_output=True, text=True, check=False)


def main():
    with started() as program:
        assert "ckpt-agent" in names_of_threads(program.pid), "no agent beside 300 KiB of thread-local memory"
        assert "has no agent" not in checked(program.pid).stdout, checked(program.pid)
    with started(LD_PRELOAD=NO_THREAD) as program:
        assert "ckpt-agent" not in names_of_threads(program.pid)
        assert "has no agent" in checked(program.pid).stdout, checked(program.pid)
        program.stdin.close()
        said = program.stderr.read()
        assert f"process {program.pid} has no agent" in said and said.count("\n") == 1, said


if __name__ == "__main__":
    main()
