#!/usr/bin/env python3
"""ckpt guard: a notice becomes an image within the grace time, the next start goes on from it; exit codes; kill -9 of guard; Slurm's requeue."""
import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from counting_job import COUNTER, count, events, is_alive, read, wait_until
from prompt import CKPT, main, problems

SKIPPED = 77


def write(path, text):
    with open(path + ".new", "w", encoding="ascii") as out:
        out.write(text)
    os.rename(path + ".new", path)


def starts():
    return len(glob.glob("starts.*"))


def job():
    """The pid of what is guarded, 0 while there is none."""
    for event in events():
        if event["event"] in ("started", "restored", "adopted"):
            return event["pid"]
    return 0


@contextlib.contextmanager
def guard(*arguments, command=None, env=None):
    # Its output is its own: the events' file is made anew each time.
    command = ["/bin/sh", "-c", 'exec "$0" "$@" >>job.log 2>&1', *(command or [sys.executable, "-c", COUNTER])]
    with open("events", "w", encoding="utf-8") as out, open("errors", "w", encoding="utf-8") as err:
        environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), **(env or {})}
        started = subprocess.Popen([CKPT, "guard", "-f", "images", *arguments, "--json", "--", *command], stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=err, env=environment)
    try:
        yield started
    finally:
        if started.poll() is None:
            pid = job()
            started.kill()
            started.wait()
            if pid:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def counts_on():
    at = count()
    wait_until("the job to count", lambda: count() > at + 3)


def half_images():
    return glob.glob("images/.ckpt-staging-*")


def ended(started, code, checkpointed):
    started.wait(60)
    last = events()[-1]
    if started.returncode != code or last["event"] != "ended" or last["checkpointed"] != checkpointed:
        yield f"exit {started.returncode}, expected {code}: {events()}: {read('errors')}"


def a_notice_becomes_an_image_and_the_next_start_goes_on():
    for number, notice in enumerate((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2), 1):
        with guard() as started:
            wait_until("the job", job)
            if events()[0]["event"] != ("started" if number == 1 else "restored"):
                yield f"begun: {events()}"
            counts_on()
            before, pid = count(), job()
            started.send_signal(notice)
            yield from ended(started, 75, True)
            if is_alive(pid) or len(events("checkpointed")) != 1 or count() < before:
                yield f"after the notice: {events()}"
    if starts() != 1:
        yield f"the program began {starts()} times"
    with guard() as started:  # its own end, well: the next start begins anew
        wait_until("the job", job)
        counts_on()
        write("stop", "0")
        yield from ended(started, 0, False)
    os.remove("stop")
    with guard() as started:
        wait_until("the job", job)
        if events()[0]["event"] != "started":
            yield f"after a good end: {events()}"
        wait_until("a new beginning", lambda: starts() == 2)
        counts_on()
        write("stop", "7")
        yield from ended(started, 7, False)
    if half_images():
        yield f"left: {half_images()}"


def exit_codes_and_signals_are_passed_on():
    for script, code in (("exit 5", 5), ("kill -9 $$", 137), ("exit 0", 0)):
        with guard(command=["sh", "-c", script]) as started:
            yield from ended(started, code, False)
    with guard(command=["sh", "-c", "trap 'exit 9' INT; echo > ready; while :; do sleep 0.05; done"]) as started:
        wait_until("its trap", lambda: os.path.exists("ready"))
        started.send_signal(signal.SIGINT)  # not a notice: the job's own
        yield from ended(started, 9, False)
    yield from problems(["guard", "-f", "images", "--", "no-such-program"], 4, err="no-such-program")
    yield from problems(["guard", "-f", "images", "--grace", "0", "--", "true"], 2, err="--grace: has to be")
    yield from problems(["guard", "-f", "images", "--every", "x", "--", "true"], 2, err="--every: 'x' is not a duration")
    yield from problems(["guard", "-f", "images", "--requeue", "--", "true"], 2, err="--requeue: is for jobs of Slurm")


def a_notice_file_a_command_and_requeue():
    os.mkdir("bin")
    with open("bin/scontrol", "w", encoding="ascii") as script:
        script.write('#!/bin/sh\necho "$@" >>requeued\n')
    os.chmod("bin/scontrol", 0o755)
    slurm = {"SLURM_JOB_ID": "4711", "PATH": f"{os.getcwd()}/bin:{os.environ['PATH']}"}
    with guard("--notice-file", "leave", "--requeue", "--status", "80", env=slurm) as started:
        wait_until("the job", job)
        counts_on()
        write("leave", "")
        yield from ended(started, 80, True)
    if read("requeued") != "requeue 4711\n":
        yield f"scontrol was told {read('requeued')}"
    os.remove("leave")
    with guard("--notice", "test -e leave") as started:
        wait_until("the job", job)
        counts_on()
        write("leave", "")
        yield from ended(started, 75, True)
    slurm["PATH"] = "/nowhere"  # the image is complete all the same, and that it was not queued is told
    with guard("--requeue", env=slurm) as started:
        wait_until("the job", job)
        counts_on()
        started.terminate()
        yield from ended(started, 3, True)
    if starts() != 1:
        yield f"the program began {starts()} times"


ENDS_WELL = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"


def what_does_not_fit_is_told():
    yield from without_time(COUNTER, 143)
    shutil.rmtree("images")
    os.remove("count"), os.remove("stop")
    # It ends well when it is told to: its work is not done for that.
    yield from without_time(ENDS_WELL + COUNTER, 0)


def without_time(program, status):
    command = [sys.executable, "-c", program, "100"]
    with guard("--every", "100s", "--grace", "100s", command=command) as started:
        wait_until("an image beside it", lambda: job() and count() > 3)
        first = images_of("saved")
        # An image of before, and then a notice with no time at all.
        started.send_signal(signal.SIGUSR1)
        yield from ended(started, 75, True)
    newest = events("checkpointed")[0]["image"]
    for _ in range(10):
        with guard("--grace", "1ms", command=command) as started:
            wait_until("the job", job)
            counts_on()
            pid = job()
            started.terminate()
            started.wait(60)
            # On a busy machine the dump may be done before the guard itself has had a processor again.
            if fitted := events("checkpointed"):
                newest = fitted[0]["image"]
                continue
            yield from ended(started, status, False)  # the job got SIGTERM instead
            told = events("not-checkpointed")
            if not told or told[0]["image"] != newest or "did not fit into 1ms" not in events("failed")[0]["message"]:
                yield f"events: {events()}"
            if is_alive(pid) or half_images():
                yield f"left: {half_images()}"
            break
    else:
        yield "a dump fitted into no time, ten times"
    with guard(command=command) as started:
        wait_until("the job", job)
        if events()[0].get("image") != newest or first:
            yield f"not the newest good one: {events()}"
        counts_on()
        write("stop", "0")
        yield from ended(started, 0, False)


def images_of(kind):
    return [event["image"] for event in events(kind)]


def images_beside_the_job():
    with guard("--every", "100ms", "--keep-last", "2", "--full-every", "2") as started:
        wait_until("five images", lambda: len(events("saved")) >= 5)
        pid = job()
        os.kill(pid, signal.SIGKILL)
        yield from ended(started, 137, False)
    with guard() as started:  # what crashed goes on from the newest image
        wait_until("the job", job)
        if events()[0]["event"] != "restored" or job() != pid:
            yield f"after a crash: {events()}"
        counts_on()
        started.terminate()
        yield from ended(started, 75, True)
    yield from problems(["guard", "-f", "images", "--", "sleep", "1"], 2, err="holds images of another command: .*--fresh")
    with guard("--fresh", command=["sh", "-c", "exit 4"]) as started:
        yield from ended(started, 4, False)
    if starts() != 1:
        yield f"the program began {starts()} times"


def killed_in_the_middle():
    """kill -9 of guard at any moment: the job goes on and the next guard takes it over, or it is an image and goes on from that."""
    pid = 0
    for moment in (None, 0.0, 0.005, 0.02, 0.04, 0.08, 0.15, 0.3):
        with guard("--every", "200ms") as started:
            wait_until("the job", job)
            if pid and job() != pid:
                yield f"another process: {job()}, {pid}"
            pid = job()
            counts_on()
            if moment is not None:
                started.terminate()
                time.sleep(moment)
            started.kill()
            started.wait()
            # The dump that it had begun is let go of, or done.
            with contextlib.suppress(TimeoutError):
                wait_until("its dump to end", lambda: not is_alive(pid), 1)
            at = count()
            wait_until("the job to go on, or its image", lambda: count() > at + 3 or (not is_alive(pid) and glob.glob("images/*/manifest.json")))
    with guard() as started:
        wait_until("the job", job)
        counts_on()
        if half_images():
            yield f"left: {half_images()}"
        write("stop", "0")
        yield from ended(started, 0, False)
    if starts() != 1:
        yield f"the program began {starts()} times"


def two_of_one_folder_are_refused():
    with guard() as started:
        wait_until("the job", job)
        yield from problems(["guard", "-f", "images", "--", "true"], 7, err="images: is another watch's or guard's already")
        counts_on()
        write("stop", "0")
        yield from ended(started, 0, False)
    os.remove("stop")
    with open("images/guard.json", "w", encoding="ascii") as state:
        state.write("{}")
    yield from problems(["guard", "-f", "images", "--", "true"], 1, err="guard.json: is not what ckpt guard wrote")


if os.geteuid() != 0:
    print("skipped: cli_guard: dumps and restores want root")
    sys.exit(SKIPPED)
main(a_notice_becomes_an_image_and_the_next_start_goes_on, exit_codes_and_signals_are_passed_on, a_notice_file_a_command_and_requeue,
     what_does_not_fit_is_told, images_beside_the_job, killed_in_the_middle, two_of_one_folder_are_refused)
