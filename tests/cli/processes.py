#!/usr/bin/env python3
"""The verbs on live processes at the prompt: signals that the caller ignores, dry runs, the status descriptor, criu's options, exit
statuses, parents that nobody named."""
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main, problems, run
from small_checkpoints import floats, safetensors

SKIPPED = 77


@contextlib.contextmanager
def process(*command):
    """One that a dump can take: no terminal, no pipes."""
    null = subprocess.DEVNULL
    command = command or ["sleep", "1000"]
    started = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    with open(f"/proc/{started.pid}/cmdline", encoding="ascii") as stream:
        while not stream.read().startswith("\0".join(command)):  # not yet executed
            time.sleep(0.001)
            stream.seek(0)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def start(*arguments, before=None, **keywords):
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd()}
    return subprocess.Popen([CKPT, *arguments], text=True, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, preexec_fn=before, **keywords)


def ignoring(*numbers):
    return lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]


def wait_for(path):
    for _ in range(3000):
        if os.path.exists(path):
            return
        time.sleep(0.01)
    raise TimeoutError(path)


def ended(started):
    """Exit code and what was printed."""
    out, err = started.communicate(timeout=60)
    return started.returncode, out, err


def ignored_signals_stay_ignored_in_convert():
    safetensors("model.safetensors", {"a": ("F32", [4], floats(4))})
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        for ignored in (True, False):
            os.mkfifo("map")
            converting = start("convert", "model.safetensors", "out.pt", "--to", "torch", "--map", "map", before=ignoring(number) if ignored else None)
            with open("map", "w", encoding="ascii") as stream:  # it waits for this file now
                time.sleep(0.05)
                converting.send_signal(number)
                time.sleep(0.05)
                stream.write("{}")
            code, _, err = ended(converting)
            if code != (0 if ignored else 130):
                yield f"{number!r}, ignored: {ignored}: exit {code}: {err}"
            os.unlink("map")
            if os.path.exists("out.pt"):
                os.unlink("out.pt")


def ignored_signals_stay_ignored_in_dump():
    with open("script", "w", encoding="ascii") as stream:
        stream.write('#!/bin/sh\ntouch "in.$CKPT_ACTION"\nwhile [ ! -e go ]; do sleep 0.01; done\n')
    os.chmod("script", 0o755)
    for numbers, code in (((signal.SIGHUP, signal.SIGINT, signal.SIGCHLD), 0), ((), 130)):
        with process() as target:
            dump = start("dump", "-p", str(target.pid), "-f", "image", "-R", "--action-script", "./script", before=ignoring(*numbers))
            wait_for("in.pre-dump")
            dump.send_signal(signal.SIGHUP)
            time.sleep(0.1)
            with open("go", "w", encoding="ascii"):
                pass
            got, _, err = ended(dump)
            if got != code:
                yield f"ignored {numbers}: exit {got}: {err}"
            if target.poll() is not None:
                yield "the process has ended"
        for name in ("go", "in.pre-dump", "in.post-dump"):
            if os.path.exists(name):
                os.unlink(name)
        shutil.rmtree("image", ignore_errors=True)


def dumped(place, *command):
    """An image, and nothing left of its process."""
    with process(*command) as target:
        result = run("dump", "-p", str(target.pid), "-f", place)
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        return target.pid


def ignored_signals_are_not_passed_on_by_restore():
    pid = dumped("image")
    restore = start("restore", "-f", "image", "--pidfile", "pid", before=ignoring(signal.SIGHUP))
    wait_for("pid")
    time.sleep(0.2)
    restore.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    if not os.path.exists(f"/proc/{pid}"):
        yield "a hangup that ckpt was told to ignore has ended the process"
    restore.send_signal(signal.SIGTERM)
    code, _, err = ended(restore)
    if code != 128 + signal.SIGTERM:
        yield f"exit {code}: {err}"


def the_status_descriptor_must_be_open():
    with process() as target:
        pid = str(target.pid)
        with open("/dev/null", "rb") as stream:
            for fd in (99, stream.fileno()):
                for line in (["dump", "-p", pid, "-f", "image", "-R"], ["pre-dump", "-p", pid, "-f", "image"], ["dump", "-p", pid, "-f", "image", "-n"],
                             ["restore", "-f", "image"], ["restore", "-f", "image", "-n"]):
                    result = run(*line, "--status-fd", str(fd), pass_fds=[stream.fileno()])
                    if result.returncode != 2 or f"--status-fd {fd}: this descriptor is not open" not in result.stderr:
                        yield f"{line} --status-fd {fd}: exit {result.returncode}: {result.stderr}"
        if os.path.exists("image") or target.poll() is not None:
            yield "something was done"
        reader, writer = os.pipe()
        result = run("dump", "-p", pid, "-f", "image", "-R", "--status-fd", str(writer), pass_fds=[writer])
        os.close(writer)
        if result.returncode != 0 or os.read(reader, 8) != b"\0":
            yield f"no byte: exit {result.returncode}: {result.stderr}"
        os.close(reader)


def a_dry_run_refuses_what_the_run_refuses():
    os.makedirs("full/x")
    with open("file", "w", encoding="ascii"):
        pass
    pid_of_other = None
    with process() as other:
        pid_of_other = str(other.pid)
        if run("pre-dump", "-p", pid_of_other, "-f", "other").returncode != 0:
            yield "no image of another process"
    with process() as target:
        pid = str(target.pid)
        for verb in ("dump", "pre-dump"):
            for line, code in ((["-f", "full"], 2), (["-f", "file"], 2), (["-f", "image", "--prev", "none"], 4), (["-f", "image", "--prev", "full"], 4),
                               (["-f", "image", "--prev", "other"], 2), (["-f", "file/below"], None), (["-f", "/proc/image"], None)):
                real = run(verb, "-p", pid, *line)
                dry = run(verb, "-p", pid, *line, "-n")
                if real.returncode == 0 or dry.returncode != real.returncode or dry.stderr != real.stderr or code not in (None, dry.returncode):
                    yield f"{verb} {line}: exit {real.returncode}, dry {dry.returncode}: {real.stderr} {dry.stderr}"
            yield from problems([verb, "-p", pid, "-f", "full", "--force", "-n"], 0, out="would write")
            yield from problems([verb, "-p", pid, "-f", "new/below", "-n"], 0, out="would write +new/below\n")
        if os.path.exists("new") or sorted(os.listdir(".")) != ["file", "full", "other"]:
            yield f"left behind: {os.listdir('.')}"


def a_dry_run_says_what_does_not_fit():
    os.mkdir("small")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "small"], check=False).returncode != 0:
        return
    try:
        fill = "import os, time; data = os.urandom(8 << 20); time.sleep(1000)"
        same = "import time; data = bytearray(b'x' * (8 << 20)); time.sleep(1000)"
        for program, code in ((fill, 9), (same, 0)):
            with process("/usr/bin/python3", "-c", program) as target:
                time.sleep(0.5)
                dry = run("dump", "-p", str(target.pid), "-f", "small/image", "-R", "-n")
                real = run("dump", "-p", str(target.pid), "-f", "small/image", "-R")
                if (dry.returncode, real.returncode) != (code, code) or ("are free there" in dry.stderr) != (code == 9):
                    yield f"dry {dry.returncode}, real {real.returncode}: {dry.stderr}"
                document = json.loads(run("dump", "-p", str(target.pid), "-f", "image", "-R", "-n", "--json").stdout)
                if (document["bytes_expected"] > 8 << 20) != (program is fill) or document["room_bytes"] <= 0:
                    yield f"{document}"
            if os.listdir("small") != ([] if code else ["image"]):
                yield f"left behind: {os.listdir('small')}"
    finally:
        subprocess.run(["umount", "small"], check=False)


def criu_lines_work():
    with process() as target:
        pid = str(target.pid)
        output = ["-v4", "-o", "criu.log", "--display-stats"]
        os.makedirs("images/1")
        os.makedirs("images/2")
        yield from problems(["pre-dump", "-t", pid, "-D", "images/1", "--track-mem", "-R", *output], 0, err="images/1")
        yield from problems(["dump", "-t", pid, "-D", "images/2", "--prev-images-dir", "../1", "--track-mem", "-R", *output, "-v"], 0, err=r"needs \.\./1\)")
        yield from problems(["dump", "-t", pid, "-D", "images/3", "--prev-images-dir", "../2", "-R"], 0, err=r"needs \.\./2\)")
        yield from problems(["dump", "-t", pid, "-D", "4", "--prev-images-dir", "images/2", "-R"], 0, err=r"no write tracking since images/2.*needs \.\./images/2\)")
        yield from problems(["dump", "-t", pid, "-D", "5", "--prev-images-dir", "none", "-R"], 4, err="none")
        yield from problems(["dump", "-t", pid, "-D", "5", "--prev-images-dir", "../1", "--prev", "4", "-R"], 2, err="--prev")
    yield from problems(["restore", "-D", "images/2", "-d", "-n", *output], 0, out="would restore")


def required_options_come_from_the_environment():
    with process() as target:
        variable = {"CKPT_DUMP_PID": str(target.pid)}
        yield from problems(["dump", "-f", "image", "-n"], 0, out="would write", env=variable)
        yield from problems(["dump", "-f", "image", "-n", "-s"], 2, err="CKPT_DUMP_LEAVE_RUNNING: sets --leave-running.*--leave-stopped",
                            env={**variable, "CKPT_DUMP_LEAVE_RUNNING": "true"})
        yield from problems(["dump", "-f", "image", "-n", "-s"], 0, out="would write", env={**variable, "CKPT_DUMP_LEAVE_RUNNING": "false"})


def restore_in_the_foreground_says_how_the_process_ended():
    wait = "import os, time\nwhile not os.path.exists('now'): time.sleep(0.01)\n"
    for end, code, want in (("os._exit(9)", 9, {"exit_code": 9, "signal": None}), ("os.kill(os.getpid(), 15)", 143, {"exit_code": None, "signal": 15})):
        pid = dumped("image", "/usr/bin/python3", "-c", wait + end)
        with open("now", "w", encoding="ascii"):
            pass
        result = run("restore", "-f", "image", "--json")
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        if result.returncode != code or [line["event"] for line in lines] != ["done", "ended"]:
            yield f"exit {result.returncode}: {result.stdout} {result.stderr}"
            continue
        if lines[1]["pid"] != pid or {name: lines[1][name] for name in want} != want:
            yield f"{lines[1]}"
        os.unlink("now")
        shutil.rmtree("image")


def a_parent_that_nobody_named_is_told():
    with process() as target:
        line = ["pre-dump", "-p", str(target.pid), "-f"]
        yield from problems([*line, "a"], 0, err=r"image +a\n")
        yield from problems([*line, "b", "-n"], 0, out=r"would write +b +\(needs \S*a, the image since which writes are tracked; --no-prev makes a full one\)")
        yield from problems([*line, "b"], 0, err=r"image +b +\(needs \.\./a, the image since which writes are tracked; --no-prev makes a full one\)")
        yield from problems([*line, "c", "--prev", "b"], 0, err=r"image +c +\(needs \.\./b\)\n")
        yield from problems([*line, "d", "--no-prev"], 0, err=r"image +d\n")
        yield from problems([*line, "e", "--no-prev", "--prev", "d"], 2, err="--prev")
        # What is tracked from now on is what was written since the full image.
        yield from problems([*line, "e"], 0, err=r"image +e +\(needs \.\./d,")
    shutil.rmtree("a")
    for image in ("b", "c"):
        yield from problems(["verify", image], 4, err="has it as its parent")
    yield from problems(["verify", "e"], 0, err=".")


def reports_go_to_stderr_and_plans_to_stdout():
    with process() as target:
        line = ["pre-dump", "-p", str(target.pid), "-f"]
        yield from problems([*line, "a"], 0, err="^process .*\nimage +a\n.*\ntarget +running")
        yield from problems([*line, "b", "-q"], 0)
        yield from problems([*line, "c", "-q", "-n"], 0, out="would write +c")
        report = json.loads(run(*line, "d", "--json").stdout)
        if report["event"] != "done" or any(" " in name for name in report["phases_us"]):
            yield f"{report}"
    yield from problems(["-q", "squash", "b", "s", "-n"], 0, out="would write")
    os.makedirs("full/x")
    yield from problems(["squash", "b", "full", "-n"], 2, err="full: exists and is not empty")
    yield from problems(["squash", "b", "full", "-n", "--force"], 0, out="would write")
    yield from problems(["-q", "rm", "b", "-n", "--force"], 0, out=r"^would remove \S+/b \(")
    yield from problems(["-q", "rm", "b", "--force"], 0)
    yield from problems(["-q", "restore", "-f", "a", "-n"], 0, out="would restore")


def who_is_not_there_is_told():
    gone = subprocess.Popen(["true"])
    gone.wait()
    for line in (["dump", "-f", "x"], ["pre-dump", "-f", "x"], ["check"], ["suspend"]):
        yield from problems([*line, "-p", str(gone.pid)], 4, err=rf"^ckpt: no process {gone.pid}\n")
    os.chmod(".", 0o755)
    with process() as target:
        null = subprocess.DEVNULL
        result = subprocess.run([CKPT, "dump", "-p", str(target.pid), "-f", "x"], text=True, stdin=null, capture_output=True, user=65534, group=65534, check=False)
        if result.returncode != 5 or not result.stderr.startswith(f"ckpt: process {target.pid}: belongs to root\n") or "hint: run ckpt as root" not in result.stderr:
            yield f"exit {result.returncode}: {result.stderr}"


def options_for_models_are_refused_for_images():
    with process() as target:
        run("dump", "-p", str(target.pid), "-f", "image", "-R")
    for option in (["--tree"], ["--diff", "image"], ["--files"], ["--common"]):
        yield from problems(["inspect", "image", *option], 2, err=f"image: is a process image: {option[0]} is for model checkpoints")
    yield from problems(["inspect", "image", "--html", "x", "--maps"], 2, err="--html has all of a process image")
    yield from problems(["inspect", "image", "*.weight"], 2, err="image: is a process image: it has no keys")


def list_knows_whose_parent_is_gone():
    with process() as target:
        for image in ("a", "b", "c", "other"):
            run("pre-dump", "-p", str(target.pid), "-f", image, *(["--no-prev"] if image in ("a", "other") else []))
    def ok():
        return {image["path"].lstrip("./"): image["ok"] for image in json.loads(run("list", "--json").stdout)["images"]}
    if ok() != {"a": True, "b": True, "c": True, "other": True}:
        yield f"sound: {ok()}"
    os.rename("a", ".ckpt-staging-a")
    if ok() != {"b": False, "c": False, "other": True}:
        yield f"without a: {ok()}"
    yield from problems(["list"], 0, out=r"\./c +no parent .*parent \S*a: ")
    shutil.copytree("other", "a")
    if ok() != {"a": True, "b": False, "c": False, "other": True}:
        yield f"with another image in its place: {ok()}"


if os.geteuid() != 0 or ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER: what restore leaves comes to us
    print("needs root")
    sys.exit(SKIPPED)
main(ignored_signals_stay_ignored_in_convert, ignored_signals_stay_ignored_in_dump, ignored_signals_are_not_passed_on_by_restore,
     the_status_descriptor_must_be_open, a_dry_run_refuses_what_the_run_refuses, a_dry_run_says_what_does_not_fit, criu_lines_work,
     required_options_come_from_the_environment, restore_in_the_foreground_says_how_the_process_ended, a_parent_that_nobody_named_is_told,
     reports_go_to_stderr_and_plans_to_stdout, who_is_not_there_is_told, options_for_models_are_refused_for_images, list_knows_whose_parent_is_gone)
