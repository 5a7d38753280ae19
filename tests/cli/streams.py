#!/usr/bin/env python3
"""What goes where: data to stdout, the rest to stderr; closed pipes, full disks, colour, settings from outside."""
import os
import subprocess

from prompt import CKPT, main, problems, run


def a_closed_pipe_ends_quietly():
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = run("completion", "bash", stdout=write_end)
    os.close(write_end)
    if result.returncode != 0 or result.stderr:
        yield f"exit {result.returncode}: {result.stderr}"


def a_full_disk_below_stdout_is_an_error():
    with open("/dev/full", "w", encoding="ascii") as full:
        result = run("completion", "bash", stdout=full)
    if result.returncode != 9 or "No space left on device" not in result.stderr:
        yield f"exit {result.returncode}: {result.stderr}"


def colour_is_for_terminals_and_can_be_switched():
    red = r"^\x1b\[1;31mckpt:"
    yield from problems(["frob"], 2, err="^ckpt: ")
    yield from problems(["inspect", "none", "--color=always"], 4, err=red)
    yield from problems(["inspect", "none"], 4, err=red, env={"CKPT_COLOR": "always"})
    yield from problems(["inspect", "none", "--color=never"], 4, err="^ckpt:", env={"CKPT_COLOR": "always"})
    for color, wanted in (("always", True), ("never", False)):
        if ("\x1b[" in run("check", "--color", color).stdout) != wanted:
            yield f"check --color {color}"
    for env, colored in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
        leader, follower = os.openpty()
        run("inspect", "none", stderr=follower, env=env)
        os.close(follower)
        text = os.read(leader, 4096)
        os.close(leader)
        if text.startswith(b"\x1b[1;31m") != colored:
            yield f"on a terminal with {env}: {text}"


def settings_come_from_flag_then_variable_then_file():
    os.makedirs(".config/ckpt")
    with open(".config/ckpt/config.toml", "w", encoding="ascii") as stream:
        stream.write('color = "always"  # as on a terminal\n')
    red, plain = r"^\x1b\[1;31mckpt:", "^ckpt:"
    yield from problems(["inspect", "none"], 4, err=red)
    yield from problems(["inspect", "none"], 4, err=plain, env={"CKPT_COLOR": "never"})
    yield from problems(["inspect", "none", "--color", "always"], 4, err=red, env={"CKPT_COLOR": "never"})
    yield from problems(["inspect", "none"], 4, err=plain, env={"CKPT_CONFIG": ""})
    with open("other", "w", encoding="ascii") as stream:
        stream.write("colour = never\n")
    yield from problems(["inspect", "none"], 2, err="other:1: no option is called 'colour'", env={"CKPT_CONFIG": "other"})
    yield from problems(["inspect", "none"], 4, err="gone: cannot open", env={"CKPT_CONFIG": "gone"})
    yield from problems(["inspect", "none"], 2, err="CKPT_PROGRESS.*loud", env={"CKPT_PROGRESS": "loud"})


def global_options_go_before_or_after_the_verb():
    for arguments in (["--json", "inspect", "none"], ["inspect", "--json", "none"], ["inspect", "none", "--json"]):
        yield from problems(arguments, 4, err=r'^\{"code":4,.*\}\n$')


def stdout_closed_from_the_start_is_an_error_and_no_crash():
    result = subprocess.run(["/bin/sh", "-c", '"$1" completion bash >&-', "sh", CKPT], stderr=subprocess.PIPE, check=False)
    if result.returncode != 8:
        yield f"exit {result.returncode}: {result.stderr}"


main(a_closed_pipe_ends_quietly, a_full_disk_below_stdout_is_an_error, colour_is_for_terminals_and_can_be_switched,
     settings_come_from_flag_then_variable_then_file, global_options_go_before_or_after_the_verb,
     stdout_closed_from_the_start_is_an_error_and_no_crash)
