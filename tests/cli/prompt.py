"""Runs ckpt in an empty folder with a bare environment and compares what came out with patterns."""
import os
import re
import subprocess
import sys
import tempfile

CKPT = os.path.abspath(sys.argv[1])


def run(*arguments, env=None, **keywords):
    """The finished process; the working folder is the caller's."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), **(env or {})}
    keywords.setdefault("stdout", subprocess.PIPE)
    keywords.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([CKPT, *arguments], text=True, env=environment, stdin=subprocess.DEVNULL, timeout=60, **keywords)


def problems(arguments, code, out="", err="", env=None):
    """Sentences on what is not as expected. `out` and `err` are patterns to be found; empty: nothing may be printed."""
    result = run(*arguments, env=env)
    line = "ckpt " + " ".join(arguments)
    if result.returncode != code:
        yield f"{line}: exit {result.returncode}, expected {code}: {result.stderr.strip()}"
    for name, text, pattern in (("stdout", result.stdout, out), ("stderr", result.stderr, err)):
        if pattern == "" and text != "":
            yield f"{line}: {name} should be empty: {text[:300]!r}"
        elif not re.search(pattern, text, re.S):
            yield f"{line}: {name} does not match {pattern!r}: {text[:300]!r}"


def main(*checks):
    """Each check is a function that yields problems; it runs in a folder of its own."""
    found = []
    for check in checks:
        with tempfile.TemporaryDirectory(prefix="ckpt-cli-") as folder:
            os.chdir(folder)
            found += [f"{check.__name__}: {problem}" for problem in check()]
            os.chdir("/")
    print("\n".join(found))
    print(f"{len(checks)} checks, {len(found)} problems")
    sys.exit(1 if found else 0)
