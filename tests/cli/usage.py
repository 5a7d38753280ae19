#!/usr/bin/env python3
"""Wrong usage of every verb: the exit code, and a message that says what, on what, and what to do."""
import json
import os
import re

from prompt import main, problems, run

HINT = r"\nhint: ckpt (\S+ )?--help"


def verbs():
    text = run("--help").stdout
    return re.findall(r"^  ([a-z][a-z-]*) {2,}\S", text[text.index("\nOptions:"):], re.M)


# One correct command line for each verb that needs arguments: wrong ones are made from it.
RIGHT = {
    "pre-dump": ["-p", "1", "-f", "image"],
    "dump": ["-p", "1", "-f", "image"],
    "restore": ["-f", "image"],
    "inspect": ["image"],
    "verify": ["image"],
    "load-metadata": ["image"],
    "convert": ["src", "dst", "--to", "torch_dist"],
    "cat": ["image", "key"],
    "squash": ["src", "dst"],
    "rm": ["image"],
    "run": ["true"],
    "completion": ["bash"],
}


def every_verb_has_help():
    found = verbs()
    if not {"dump", "convert", "inspect", "completion"} <= set(found):
        yield f"verbs are missing: {found}"
    for verb in found:
        yield from problems([verb, "--help"], 0, rf"Usage: ckpt {verb} ")


def nothing_or_nonsense_instead_of_a_verb():
    yield from problems([], 2, err="a verb is required" + HINT)
    yield from problems(["frobnicate"], 2, err="'frobnicate' is not a verb" + HINT)
    yield from problems(["--frobnicate"], 2, err="unknown option '--frobnicate'" + HINT)
    yield from problems(["--version"], 0, r"^ckpt \d+\.\d+\.\d+\n$")


def unknown_options_are_refused_by_name():
    for verb in verbs():
        yield from problems([verb, *RIGHT.get(verb, []), "--no-such-flag"], 2,
                            err=f"ckpt: {verb}: unknown option '--no-such-flag'" + HINT)
    for verb in ("dump", "restore"):
        for flag in ("--enable-fs", "--link-remap", "-c", "-W", "-W/tmp", "--work-dir=/tmp", "-J", "-S", "-r", "-M", "-L"):
            yield from problems([verb, *RIGHT[verb], flag], 2, err=f"criu's option '{flag}' is not supported\nhint: ")
    yield from problems(["dump", *RIGHT["dump"], "-l"], 2, err="criu's option '-l' is not supported\nhint: leave it out")
    yield from problems(["dump", *RIGHT["dump"], "-x"], 2, err="criu's option '-x' is not supported\nhint: .*--ext-unix-sk")
    yield from problems(["inspect", "image", "-l"], 2, err="unknown option '-l'")


def what_is_required_is_named():
    for verb, right in RIGHT.items():
        yield from problems([verb], 2, err=rf"ckpt: {verb}: .*required" + HINT)
    yield from problems(["dump", "-p", "1"], 2, err="--images-dir.* is required")
    yield from problems(["dump", "-f", "image"], 2, err="--pid.* is required")
    yield from problems(["convert", "src", "dst"], 2, err="--to is required")
    # From the environment or the config file it is given as well.
    yield from problems(["convert", "src", "dst"], 4, err="src", env={"CKPT_CONVERT_TO": "torch"})
    with open("config", "w", encoding="ascii") as stream:
        stream.write('[convert]\nto = "torch"\n')
    yield from problems(["convert", "src", "dst"], 4, err="src", env={"CKPT_CONFIG": "config"})


def urls_are_no_paths():
    lines = [[verb, *("s3://bucket/x" if word in ("image", "src") else word for word in right)] for verb, right in RIGHT.items()
             if verb not in ("run", "completion")]
    lines += [["convert", "src", "s3://bucket/x", "--to", "torch"], ["list", "https://host/x"], ["dump", "-p", "1", "-f", "image", "--prev", "gs://a"],
              ["verify", "image", "--against", "hf://a/b"]]
    for line in lines:
        yield from problems(line, 6, err="is a URL: URLs are not read yet")
    # A name with such characters in its middle is a path, and what follows `run --` is the program's.
    yield from problems(["inspect", "./s3://bucket"], 4, err="s3://bucket")
    if "URL" in run("run", "--", "/no/such/program", "s3://bucket").stderr:
        yield "run: a program's argument is taken for a path of ckpt"


def values_are_checked():
    for pid in ("abc", "0", "-5", "1.5", "99999999999999999999", ""):
        for verb in ("dump", "pre-dump"):
            yield from problems([verb, "-p", pid, "-f", "image"], 2, err="ckpt: ")
    yield from problems(["convert", "a", "b", "--to", "floppy"], 2, err="floppy")
    yield from problems(["completion", "tcsh"], 2, err="tcsh")
    yield from problems(["completion", "bash", "zsh"], 2, err="'zsh' is one argument too many")
    yield from problems(["completion", "bash", "--progress", "loud"], 2, err="loud")
    yield from problems(["dump", "-p", "1", "-f", "image", "-R", "-s"], 2, err="ckpt: dump: ")
    if os.listdir("."):
        yield f"something was made: {os.listdir('.')}"


def missing_paths_are_not_found():
    for arguments in (["inspect", "none"], ["verify", "none"], ["load-metadata", "none"], ["cat", "none", "key"], ["restore", "-f", "none"],
                      ["convert", "none", "dst", "--to", "torch_dist"], ["squash", "none", "dst"],
                      ["rm", "none"]):
        yield from problems(arguments, 4, err="none")
    if os.listdir("."):
        yield f"something was made: {os.listdir('.')}"


def what_is_no_checkpoint_is_said():
    os.mkdir("empty")
    with open("text", "w", encoding="ascii") as stream:
        stream.write("hello\n")
    for verb in ("inspect", "verify", "load-metadata"):
        for path in ("empty", "text"):
            result = run(verb, path)
            if result.returncode not in (1, 4, 6) or path not in result.stderr or result.stdout:
                yield f"ckpt {verb} {path}: exit {result.returncode}: {result.stderr}"


def errors_are_one_json_line_with_json():
    for arguments, code, kind in ((["--json", "frobnicate"], 2, "usage"), (["inspect", "none", "--json"], 4, "not-found"),
                                  (["dump", "--json", "-p", "x", "-f", "y"], 2, "usage")):
        result = run(*arguments)
        lines = result.stderr.splitlines()
        if len(lines) != 1 or result.stdout:
            yield f"{arguments}: {result.stderr!r} {result.stdout!r}"
            continue
        document = json.loads(lines[0])
        if document["schema"] != "ckpt.error/1" or document["code"] != code or result.returncode != code:
            yield f"{arguments}: {document}"
        if document["kind"] != kind or not document["message"] or "hint" not in document or "target_state" not in document:
            yield f"{arguments}: {document}"


def names_are_escaped():
    yield from problems(["inspect", "a\x1b[31mb"], 4, err=r"a\\x1b\[31mb")


main(every_verb_has_help, nothing_or_nonsense_instead_of_a_verb, unknown_options_are_refused_by_name,
     what_is_required_is_named, urls_are_no_paths, values_are_checked, missing_paths_are_not_found, what_is_no_checkpoint_is_said,
     errors_are_one_json_line_with_json, names_are_escaped)
