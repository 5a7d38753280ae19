#!/usr/bin/env python3
"""A shell's pipeline in the middle of its work: loops and builtins, programs that come and go, sort with all of its input in
memory, a process substitution. Its output must be that of an uninterrupted run, byte for byte."""
import os

from app import expect, main, read_text

PIPELINE = r"""
set -o pipefail
produce() {
  for ((i = 0; i < 6000; ++i)); do
    echo "$(( (i * 7919) % 6007 )) line $i"
    if ((i % 100 == 0)); then echo "round $((i / 100 + 1))" >&2; sleep 0.1; fi
  done
}
number() { local n=0; while read -r line; do printf '%s %s\n' "$((n++))" "$line"; done; }
produce |
  tee >(grep -c 7 >"$1.count") |
  number |
  awk '{ sum += $2; print $2, $1, $3, $4, sum }' |
  sort -n |
  { trap 'echo "trap: $kept"' EXIT; while read -r first rest; do kept=$first; echo "$first: ${rest^^}"; done; } |
  gzip -n >"$1.gz"
echo "statuses ${PIPESTATUS[*]}" >"$1.status"
while [ ! -s "$1.count" ]; do sleep 0.05; done
"""


def test(run):
    def start(name):
        return run.start(name, ["bash", "-c", PIPELINE, "bash", name])
    straight, interrupted = start("straight"), start("interrupted")
    interrupted.wait_rounds(15)
    interrupted.checkpoint(between=lambda: interrupted.wait_rounds(8))
    expect(interrupted.rounds() < 60, True, "it was dumped in the middle of its work")
    interrupted.wait_rounds(5)
    for process in (straight, interrupted):
        process.wait_end()
        expect(process.ending, 0, f"the exit status of {process.name}")
    for end in (".gz", ".status", ".count"):
        with open(os.path.join(run.folder, f"straight{end}"), "rb") as one, \
             open(os.path.join(run.folder, f"interrupted{end}"), "rb") as other:
            wanted = one.read()
            expect(len(wanted) > 0, True, f"something in straight{end}")
            expect(other.read() == wanted, True, f"interrupted{end} is straight{end}")
    expect(read_text(os.path.join(run.folder, "straight.status")).split(), ["statuses"] + ["0"] * 7, "the statuses")


if __name__ == "__main__":
    main(test)
