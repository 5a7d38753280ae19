#!/usr/bin/env python3
"""The completion scripts do complete: bash runs its own, fish too where it is installed; zsh and fish check theirs where they are installed."""
import json
import os
import shutil
import struct
import subprocess

from prompt import CKPT, main, run

ASK = """source ./ckpt.bash
COMP_WORDS=(%s) COMP_CWORD=%d COMP_TYPE=%d
_ckpt
printf '%%s\\n' "${COMPREPLY[@]}"
"""


def bash_offers(*words, how=ord("\t")):
    script = ASK % (" ".join(f"'{word}'" for word in words), len(words) - 1, how)
    return set(subprocess.run(["bash", "-c", script], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines())


def make_model(path, *keys):
    header = json.dumps({key: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, key in enumerate(keys)}).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header + bytes(len(keys)))


def bash_completes_verbs_flags_values_and_files():
    with open("ckpt.bash", "w", encoding="utf-8") as stream:
        stream.write(run("completion", "bash").stdout)
    os.mkdir("some-folder")
    for words, expected in ((("ckpt", "du"), {"dump"}),
                            (("ckpt", "completion", "--js"), {"--json"}),
                            (("ckpt", "dump", "--leave-"), {"--leave-running", "--leave-stopped"}),
                            (("ckpt", "--color", "nev"), {"never"}),
                            (("ckpt", "convert", "--to", "torch_d"), {"torch_dist"}),
                            (("ckpt", "--json", "insp"), {"inspect"}),
                            (("ckpt", "dump", "--gpu", "=", "o"), {"off", "only"}),
                            (("ckpt", "dump", "--gpu", "="), {"auto", "off", "only"}),
                            (("ckpt", "inspect", "--sort", "sha"), {"shape", "shards"}),
                            (("ckpt", "inspect", "--columns", "key,sha"), {"key,shape", "key,shards"}),
                            (("ckpt", "verify", "--hash", ""), {"xxh3-128", "sha256"}),
                            (("ckpt", "cat", "some"), {"some-folder"}),
                            (("ckpt", "completion", ""), {"bash", "zsh", "fish"}),
                            (("ckpt", "help", "dum"), {"dump"}),
                            (("ckpt", "dump", "-f", "some"), {"some-folder"}),
                            (("ckpt", "inspect", "some"), {"some-folder"})):
        offered = bash_offers(*words)
        if offered != expected:
            yield f"{words}: {offered} instead of {expected}"
    if str(os.getpid()) not in bash_offers("ckpt", "dump", "-p", str(os.getpid())):  # which others' numbers may begin with
        yield "our own number is not offered"
    listed = bash_offers("ckpt", "dump", "-p", "", how=ord("?"))
    if not any(line.startswith(f"{os.getpid()} (python3") for line in listed):
        yield f"no process of this name and number: {listed}"
    if not {"dump", "inspect", "--json"} <= bash_offers("ckpt", ""):
        yield f"no verbs offered: {bash_offers('ckpt', '')}"


def keys_are_completed_and_never_run():
    with open("ckpt.bash", "w", encoding="utf-8") as stream:
        stream.write(run("completion", "bash").stdout)
    make_model("m.safetensors", "a.one", "a.two words", "a.$(touch run)", 'a."quoted"', "b")
    keys = {"a.one", "a.two words", "a.$(touch run)"}
    for words in (("cat", "m.safetensors", "a"), ("--json", "cat", "--from", "=", "auto", "--max-memory", "1G", "m.safetensors", "a")):
        offered = bash_offers(CKPT, *words)
        if offered != keys:
            yield f"bash, {words}: {offered} instead of {keys}"
    if shutil.which("fish"):
        ask = f"source ({CKPT} completion fish | psub); complete -C '{CKPT} cat m.safetensors a'"
        offered = set(subprocess.run(["fish", "--no-config", "-c", ask], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines())
        if {key.split("\t")[0] for key in offered} != keys:
            yield f"fish: {offered} instead of {keys}"
    if os.path.exists("run"):
        yield "a key was run"


def the_others_parse():
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell).stdout
        if "dump" not in script or "leave-running" not in script:
            yield f"{shell}: does not know dump --leave-running"
        if shutil.which(shell):
            checked = subprocess.run([shell, "-n"], input=script, text=True, stderr=subprocess.PIPE, check=False)
            if checked.returncode != 0:
                yield f"{shell}: {checked.stderr}"


main(bash_completes_verbs_flags_values_and_files, keys_are_completed_and_never_run, the_others_parse)
