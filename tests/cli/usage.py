#!/usr/bin/env python3
"""Wrong usage of every verb: the exit code, and a message that says what, on what, and what to do."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import main, problems, run
from small_checkpoints import floats, safetensors

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
    "watch": ["-p", "1", "-f", "image", "--every", "1s"],
    "guard": ["-f", "image", "true"],
    "protect": ["a", "b"],
    "rebuild": ["a", "b"],
    "push": ["a", "--store", "s"],
    "pull": ["a", "--store", "s", "--dir", "d"],
    "gc": ["--store", "s"],
    "plan": ["--mtbf", "3h", "--save-cost", "1s"],
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
    for line in (["--version"], ["-V"], ["version"]):
        yield from problems(line, 0, r"^ckpt \d+\.\d+\.\d+ \(([0-9a-f]+, )?image format \d+, CUDA kernels: (yes|no)\)\n"
                            r"linked dynamically; [^\n]+\ncodecs: blosc, [a-z0-9, ]+\n$")
        document = json.loads(run(*line, "--json").stdout)
        if document["schema"] != "ckpt.version/1" or document["image_format"] < 3 or document["linked"] != "dynamically" \
                or not document["gpus"] or not document["nftables"] or "zstd" not in document["codecs"]:
            yield f"{line}: {document}"
    for line, same in ((["help"], ["--help"]), (["help", "dump"], ["dump", "--help"])):
        yield from problems(line, 0, re.escape(run(*same).stdout))
    yield from problems(["help", "dmup"], 2, err="'dmup' is not a verb\nhint: did you mean dump?")


def what_is_almost_right_is_told():
    for line, meant in ((["predump"], "pre-dump"), (["inpsect", "x"], "inspect"), (["--jsn"], "--json"), (["-json"], "--json"),
                        (["inspect", "x", "--josn"], "--json"), (["dump", "-p", "1", "-f", "x", "--leave-runing"], "--leave-running"),
                        (["convert", "a", "b", "--too=torch"], "--to")):
        yield from problems(line, 2, err=rf"\nhint: did you mean {meant}\?; ckpt (\S+ )?--help")
    yield from problems(["convert", "a", "b", "--to", "torch_dst"], 2, err=r"--to: 'torch_dst' is none of torch_dist, .*; did you mean torch_dist\?\n")
    # The verbs of pos-cli are options, and some of its options have other names here.
    yield from problems(["--dump", "--dir", "d", "--pid", "1"], 2, err="unknown option '--dump'\nhint: a verb has no dashes: ckpt dump")
    yield from problems(["--clean", "--dir", "d"], 2, err="hint: ckpt rm DIR")
    yield from problems(["dump", "-p", "1", "-f", "x", "--target", "cuda_memory"], 2, err="hint: dump has --gpu")
    yield from problems(["--leave-running"], 2, err="hint: it goes with a verb: ckpt pre-dump --leave-running")


def values_that_are_not_are_told_in_words():
    for line, words in ((["-p", "abc"], "--pid wants a number, not 'abc'"), (["-p", "1.5"], "--pid wants a whole number, not '1.5'"),
                        (["-p", "99999999999"], "--pid: 99999999999 is beyond what it can be"), (["-p"], "--pid wants a value"),
                        (["-p", "1", "--jobs", "0"], "--jobs: 0 is not in the range 1 to 1024"), (["-p", "1", "--timeout", "0"], "--timeout: '0' is not a number above zero")):
        yield from problems(["dump", "-f", "x", *line], 2, err=re.escape(f"ckpt: dump: {words}\n"))


def unknown_options_are_refused_by_name():
    for verb in verbs():
        if verb == "criu":  # its words and its exit codes are criu's
            continue
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


def urls_are_read_where_checkpoints_are():
    """tests/remote has what is read, and written by convert; here what is not."""
    lines = [[verb, *("s3://bucket/x" if word in ("image", "src") else word for word in right)] for verb, right in RIGHT.items()
             if verb == "rm"]
    lines += [["squash", "image", "s3://bucket/x"]]
    for line in lines:
        yield from problems(line, 6, err="is a URL: what is read or written here is on this host")
    yield from problems(["dump", "-p", "1", "-f", "image", "--prev", "gs://a"], 2, err="an image that lies beside it")
    yield from problems(["verify", "image", "--against", "hf://a/b"], 6, err="is a URL of a kind that is not read")
    for wrong, words in (("s3://", "names no bucket"), ("http://", "names no host"), ("https://user:word7@host/x", "user name or a password")):
        yield from problems(["inspect", wrong], 2, err=words)
        if "word7" in run("inspect", wrong).stderr:
            yield "inspect: a password is shown"
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


def write_tensor(path, value, declared=1):
    header = b'{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,%d]}}' % declared
    with open(path, "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header + bytes([value]))


def errors_are_one_json_line_with_json():
    for name, value, declared in (("one", 1, 1), ("two", 2, 1), ("cut", 1, 2)):
        write_tensor(name + ".safetensors", value, declared)
    for arguments, code, kind in ((["--json", "frobnicate"], 2, "usage"), (["inspect", "none", "--json"], 4, "not-found"),
                                  (["inspect", "one.safetensors", "--diff", "two.safetensors", "--json"], 1, "mismatch"),
                                  (["verify", "one.safetensors", "--against", "two.safetensors", "--json"], 1, "mismatch"),
                                  (["inspect", "cut.safetensors", "--json"], 1, "corrupt"),
                                  (["dump", "--json", "-p", "x", "-f", "y"], 2, "usage")):
        result = run(*arguments)
        lines = result.stderr.splitlines()
        if len(lines) != 1 or (result.stdout and kind != "mismatch"):
            yield f"{arguments}: {result.stderr!r} {result.stdout!r}"
            continue
        document = json.loads(lines[0])
        if document["schema"] != "ckpt.error/1" or document["code"] != code or result.returncode != code:
            yield f"{arguments}: {document}"
        if document["kind"] != kind or not document["message"] or "hint" not in document or "target_state" not in document:
            yield f"{arguments}: {document}"


def only_names_that_the_user_gave_are_told():
    safetensors("m.safetensors", {"a": ("F32", [4], floats(4))})
    os.mkdir("name.html")
    for line, name in ((["inspect", "m.safetensors", "--html", "none/x.html"], "none/x.html"),
                       (["verify", "m.safetensors", "--write-manifest", "none/x.json"], "none/x.json"),
                       (["inspect", "m.safetensors", "--html", "name.html"], "name.html")):
        result = run(*line)
        if result.returncode == 0 or f"ckpt: {name}: " not in result.stderr:
            yield f"{line}: exit {result.returncode}: {result.stderr}"


def names_are_escaped():
    yield from problems(["inspect", "a\x1b[31mb"], 4, err=r"a\\x1b\[31mb")


main(every_verb_has_help, nothing_or_nonsense_instead_of_a_verb, unknown_options_are_refused_by_name,
     what_is_almost_right_is_told, values_that_are_not_are_told_in_words, what_is_required_is_named, urls_are_read_where_checkpoints_are, values_are_checked, missing_paths_are_not_found, what_is_no_checkpoint_is_said,
     errors_are_one_json_line_with_json, only_names_that_the_user_gave_are_told, names_are_escaped)
