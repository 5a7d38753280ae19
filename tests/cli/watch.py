#!/usr/bin/env python3
"""ckpt watch: images every so often, retention, the end of the process, restarts from the newest good image, kill -9 of watch."""
import contextlib
import datetime
import glob
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from counting_job import COUNTER, count, events, is_alive, read, wait_until
from prompt import CKPT, main, problems, run

SKIPPED = 77


@contextlib.contextmanager
def counter():
    null = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-c", COUNTER], stdin=null, stdout=null, stderr=null, start_new_session=True) as job:
        try:
            wait_until("the job to count", lambda: count() > 3)
            yield job
        finally:
            with contextlib.suppress(OSError):
                os.kill(job.pid, signal.SIGKILL)


@contextlib.contextmanager
def watching(*arguments):
    """Its events are read while it works."""
    with open("events", "w", encoding="utf-8") as out, open("errors", "w", encoding="utf-8") as err:
        started = subprocess.Popen([CKPT, "watch", *arguments, "--json"], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()


def images():
    return sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob("images/*/manifest.json"))


def half_images():
    return glob.glob("images/.ckpt-staging-*")


def every_so_often_and_a_last_one():
    with counter() as job, watching("-p", str(job.pid), "-f", "images", "--every", "300ms", "--keep-last", "2", "--full-every", "3") as watch:
        wait_until("seven images", lambda: len(events("saved")) >= 7)
        yield from problems(["watch", "-p", str(job.pid), "-f", "others", "--every", "1s"], 7, err=f"process {job.pid}: is watched by another ckpt")
        before = count()
        watch.send_signal(signal.SIGTERM)
        if watch.wait(30) != 0:
            yield f"exit {watch.returncode}: {read('errors')}"
        if job.poll() is not None or events()[-1]["event"] != "stopped":
            yield f"after SIGTERM: {job.poll()}, {events()[-1]}"
        if count() < before or len(events("saved")) < 8:
            yield "no last image"
    saved = events("saved")
    # 1 full, 2 and 3 lean on it, 4 full, ...
    if [bool(event["parent"]) for event in saved[:6]] != [False, True, True, False, True, True]:
        yield f"chains: {[event['parent'] for event in saved]}"
    left = images()
    if not 2 <= len(left) <= 4 or left[-1] != os.path.basename(saved[-1]["image"]) or not events("removed"):
        yield f"retention left {left}"
    yield from problems(["verify", "images@latest"], 0, out=".*", err="is images/")
    if half_images():
        yield f"left: {half_images()}"


def restores_what_died():
    with counter() as job:
        with watching("-p", str(job.pid), "-f", "images", "--every", "200ms", "--restart", "2") as watch:
            wait_until("two images", lambda: len(events("saved")) >= 2)
            pid = job.pid
            os.kill(pid, signal.SIGKILL)
            job.wait()
            wait_until("the restore", lambda: events("restored"))
            if events("ended")[0]["signal"] != 9 or events("ended")[0]["exit_code"] is not None:
                yield f"how it ended: {events('ended')}"
            at = count()
            wait_until("the job to go on", lambda: count() > at + 3)
            # A new image was made after the restore: the count of attempts begins anew.
            already = len(events("saved"))
            wait_until("another image", lambda: len(events("saved")) > already)
            with open("stop.new", "w", encoding="ascii") as out:
                out.write("3")
            os.rename("stop.new", "stop")  # exit code 3: abnormal; it is restored, and ends so again, twice
            if watch.wait(60) != 1:
                yield f"exit {watch.returncode}: {read('errors')}"
            if [event["exit_code"] for event in events("ended")[1:]] != [3, 3, 3] or not events("gave-up"):
                yield f"events: {events()}"
            if is_alive(pid):
                yield "the job is still there"


def a_normal_end_is_the_end():
    with counter() as job, watching("-p", str(job.pid), "-f", "images", "--every", "10s", "--restart") as watch:
        wait_until("an image", lambda: events("saved"))
        with open("stop", "w", encoding="ascii"):
            pass
        wait_until("the end", lambda: events("ended"))
        job.wait()
        if watch.wait(30) != 0 or events("restored") or events("ended")[0]["exit_code"] != 0:
            yield f"exit {watch.returncode}: {events()}"


def a_damaged_image_is_not_the_newest_good_one():
    with counter() as job, watching("-p", str(job.pid), "-f", "images", "--every", "100ms", "--full-every", "1", "--restart") as watch:
        wait_until("three images", lambda: len(events("saved")) >= 3)
        watch.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # what is being written is written
        newest = images()[-1]
        with open(f"images/{newest}/pagemap", "r+b") as pagemap:
            pagemap.truncate(10)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        watch.send_signal(signal.SIGCONT)
        wait_until("the restore", lambda: events("restored"))
        wait_until("it to be told", lambda: "skipped" in read("errors") and newest in read("errors"))
        with open("stop", "w", encoding="ascii"):
            pass
        if watch.wait(30) != 0:
            yield f"exit {watch.returncode}: {read('errors')}"


def killed_in_the_middle():
    """kill -9 of watch, and of all that it started, at several moments: the job goes on, no half image stays, a new watch goes on counting."""
    with counter() as job:
        for moment in (0.0, 0.01, 0.03, 0.06, 0.1):
            with watching("-p", str(job.pid), "-f", "images", "--every", "50ms") as watch:
                wait_until("it to begin", lambda: events("watching"))
                time.sleep(0.1 + moment)
                watch.kill()
                watch.wait()
            at = count()
            wait_until("the job to go on", lambda: count() > at + 3)
            wait_until("the ckpt that it had started to end", lambda: run("check", "-p", str(job.pid)).returncode in (0, 1))
        wait_until("no half image", lambda: not half_images())
        with watching("-p", str(job.pid), "-f", "images", "--on-sigterm") as watch:
            wait_until("it to begin", lambda: events("watching"))
            before = images()
            watch.send_signal(signal.SIGTERM)
            if watch.wait(30) != 0 or len(images()) != len(before) + 1 or images()[-1] <= before[-1]:
                yield f"exit {watch.returncode}: {before}, {images()}, {read('errors')}"
        for image in images():
            if (result := run("verify", f"images/{image}")).returncode != 0:
                yield f"{image}: {result.stderr}"


def planned():
    with counter() as job, watching("-p", str(job.pid), "-f", "images", "--plan", "30s") as watch:
        wait_until("a plan", lambda: events("planned"))
        period, saved = events("planned")[0]["period_us"], events("saved")[0]
        # About sqrt(2 d M), but ten times the writing at least.
        least = 10 * saved["duration_us"]
        if not least <= period * 1.01 or period > 1.3 * max((2 * saved["stall_us"] * 30e6) ** 0.5, least):
            yield f"period {period} for {saved}"
        watch.send_signal(signal.SIGTERM)
        watch.wait(30)


def moment(event):
    """Microseconds."""
    return int(datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp() * 1e6)


def no_more_than_the_limit():
    """However often: at most a twentieth of the time is what images cost."""
    limit = 0.05
    with counter() as job, watching("-p", str(job.pid), "-f", "images", "--every", "1ms", "--max-overhead", "5%", "--validate-sample", "10%") as watch:
        wait_until("four images", lambda: len(events("saved")) >= 4, 120)
        watch.send_signal(signal.SIGTERM)
        watch.wait(30)
        saved = events("saved")[:4]
    began = [moment(event) - event["duration_us"] for event in saved]
    cost = sum(event["cost_us"] for event in saved[:3])
    # An event is told a little after its image.
    if cost > limit * (began[3] - began[0] + 100_000) or any(event["stall_us"] > event["cost_us"] for event in saved):
        yield f"cost {cost} us in {began[3] - began[0]} us: {saved}"
    if any(event["fell_back"] for event in saved) or not all(event["parent"] for event in saved[1:]):
        yield f"{saved}"
    told = events("stretched")
    if not told or any(event["period_us"] != 1000 or event["next_us"] < event["cost_us"] / limit for event in told):
        yield f"stretched: {told}"


def wrong_usage():
    me = str(os.getpid())
    for more, words, code in ((["-p", me], "--every, --plan or --on-sigterm is required", 2), (["-p", "0", "--every", "1s"], "-p 0: is not a pid", 2),
                              (["-p", me, "--every", "soon"], "--every: 'soon' is not a duration", 2), (["-p", me, "--every", "0"], "--every: has to be", 2),
                              (["-p", me, "--every", "1s", "--restart", "no"], "--restart: 'no' is not a number", 2),
                              (["-p", me, "--on-sigterm", "--max-overhead", "3%"], "--max-overhead: goes with --every and --plan", 2),
                              (["-p", "4194305", "--every", "1s"], "no such process|is not a pid|is no process", 4)):
        yield from problems(["watch", "-f", "images", *more], code, err=words)
    if os.path.exists("images"):
        yield "a folder was made for nothing"
    with counter() as job, watching("-p", str(job.pid), "-f", "images", "--on-sigterm"):
        wait_until("it to begin", lambda: events("watching"))
        with counter() as other:
            yield from problems(["watch", "-p", str(other.pid), "-f", "images", "--on-sigterm"], 7, err="images: is another watch's or guard's already")


if os.geteuid() != 0:
    print("skipped: cli_watch: dumps and restores want root")
    sys.exit(SKIPPED)
main(every_so_often_and_a_last_one, restores_what_died, a_normal_end_is_the_end, a_damaged_image_is_not_the_newest_good_one, killed_in_the_middle,
     planned, no_more_than_the_limit, wrong_usage)
