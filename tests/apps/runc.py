#!/usr/bin/env python3
"""A container of runc's in namespaces of its own, with ckpt as runc's criu: left running, two pre-dumps and a dump on top of them, restored,
and the same once more."""
import json
import os
import signal
import subprocess

from app import expect, find, install, main
from container import Counted, busybox_root, call, environment, logs, wait_reaping
from harness import read_text

NAME = f"ckpt-test-{os.getpid()}"


def spec(folder, root):
    call(folder, find("runc"), "spec", cwd=folder)
    with open(os.path.join(folder, "config.json"), encoding="ascii") as stream:
        config = json.load(stream)
    config["process"]["terminal"] = False
    config["process"]["args"] = ["/bin/counter"]
    config["root"] = {"path": root, "readonly": False}
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as stream:
        json.dump(config, stream)


def check_parent(folder, image, parent):
    with open(os.path.join(folder, image, "ckpt", "manifest.json"), encoding="utf-8") as stream:
        expect(json.load(stream)["parent_path"], f"../../{parent}/ckpt", "the parent of the second pre-dump")


def end(state):
    """Its monitor, which reaps it and what ckpt left in its pid namespace, is this process."""
    pid = json.loads(state)["pid"]
    if pid > 0:
        os.kill(pid, signal.SIGKILL)
        while os.waitpid(-1, 0)[0] != pid:
            pass


def test(run):
    install(runc="runc")
    folder = run.folder
    spec(folder, busybox_root(folder))
    runc = [find("runc"), "--root", os.path.join(folder, "state")]
    output = os.path.join(folder, "output")
    counted = Counted(lambda: read_text(output))
    with open(output, "wb") as file:
        log = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)

    def start(*words):
        """Its output goes to a pipe, as that of a container under a monitor does."""
        done = subprocess.Popen([*runc, *words], env=environment(folder), cwd=folder, stdin=subprocess.DEVNULL, stdout=log.stdin, stderr=log.stdin)
        wait_reaping(done)
        expect(done.returncode, 0, f"runc {' '.join(words)}: {read_text(output)[-600:]}\n{logs(folder)}\nthe exit code")

    def status():
        return json.loads(call(folder, *runc, "state", NAME))["status"]

    def checkpoint(image, *flags):
        call(folder, *runc, "checkpoint", "--image-path", os.path.join(folder, image), "--work-path", os.path.join(folder, f"{image}-work"), *flags, NAME)

    start("run", "--detach", NAME)
    try:
        counted.goes_on("before anything")
        checkpoint("running", "--leave-running")
        expect(status(), "running", "the state of what was left running")
        counted.goes_on("left running")
        for turn in range(2):
            checkpoint(f"pre{turn}", "--pre-dump")
            counted.goes_on("after a pre-dump")
            checkpoint(f"more{turn}", "--pre-dump", "--parent-path", f"../pre{turn}")
            counted.goes_on("after two")
            check_parent(folder, f"more{turn}", f"pre{turn}")
            checkpoint(f"last{turn}", "--parent-path", f"../more{turn}")
            expect(NAME in call(folder, *runc, "list", "--quiet").split(), False, "the container is there after its end")
            start("restore", "--detach", "--image-path", os.path.join(folder, f"last{turn}"), "--work-path", os.path.join(folder, "restore-work"), NAME)
            expect(status(), "running", "the state of what was restored")
            counted.goes_on("restored")
        call(folder, *runc, "exec", NAME, "/bin/cat", "/dev/shm/count")
    finally:
        if NAME in call(folder, *runc, "list", "--quiet").split():
            end(call(folder, *runc, "state", NAME))
            call(folder, *runc, "delete", "--force", NAME)
        log.stdin.close()
        log.wait(20)


if __name__ == "__main__":
    main(test)
