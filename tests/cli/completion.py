#!/usr/bin/env python3
"""The completion scripts do complete: bash runs its own; zsh and fish check theirs where they are installed."""
import os
import shutil
import subprocess

from prompt import main, run

ASK = """source ./ckpt.bash
COMP_WORDS=(%s) COMP_CWORD=%d
_ckpt
printf '%%s\\n' "${COMPREPLY[@]}"
"""


def bash_offers(*words):
    script = ASK % (" ".join(f"'{word}'" for word in words), len(words) - 1)
    return set(subprocess.run(["bash", "-c", script], check=True, text=True, stdout=subprocess.PIPE).stdout.split())


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
                            (("ckpt", "dump", "-p", str(os.getpid())), {str(os.getpid())}),
                            (("ckpt", "completion", ""), {"bash", "zsh", "fish"}),
                            (("ckpt", "help", "dum"), {"dump"}),
                            (("ckpt", "dump", "-f", "some"), {"some-folder"}),
                            (("ckpt", "inspect", "some"), {"some-folder"})):
        offered = bash_offers(*words)
        if offered != expected:
            yield f"{words}: {offered} instead of {expected}"
    if not {"dump", "inspect", "--json"} <= bash_offers("ckpt", ""):
        yield f"no verbs offered: {bash_offers('ckpt', '')}"


def the_others_parse():
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell).stdout
        if "dump" not in script or "leave-running" not in script:
            yield f"{shell}: does not know dump --leave-running"
        if shutil.which(shell):
            checked = subprocess.run([shell, "-n"], input=script, text=True, stderr=subprocess.PIPE, check=False)
            if checked.returncode != 0:
                yield f"{shell}: {checked.stderr}"


main(bash_completes_verbs_flags_values_and_files, the_others_parse)
