#!/usr/bin/env python3
"""Documents: the man page, the README's table and the completions say what the binary does, no more and no less.

usage: documents.py SOURCE_ROOT CKPT_BINARY. Prints every finding; exit 1 if there is one.
"""
import json
import os
import re
import shutil
import subprocess
import sys

import yaml

ROOT, CKPT = sys.argv[1:3]
COMPLETIONS = {"bash": "ckpt.bash", "zsh": "_ckpt", "fish": "ckpt.fish"}


def run(*arguments):
    environment = {**os.environ, "CKPT_CONFIG": ""}
    return subprocess.run([CKPT, *arguments], check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as stream:
        return stream.read()


def flags_of(help_text):
    """The flags in the first column of a help's options."""
    found = set()
    for line in help_text.splitlines():
        if match := re.match(r"  (-\S+)", line):
            found |= {flag for flag in match.group(1).split(",") if flag.startswith("-")}
    return found


def verbs_of(help_text):
    """Verb and summary of every line below a heading of verbs."""
    body = help_text[help_text.index("\nOptions:"):]
    return dict(re.findall(r"^  ([a-z][a-z-]*) {2,}(\S.*)$", body, re.M))


def man_sections(page):
    """verb -> text of its section; the text before the first one is under ''."""
    pieces = re.split(r"^\.Ss ckpt (\S+)\n", page, flags=re.M)
    sections = {"": pieces[0]}
    for verb, text in zip(pieces[1::2], pieces[2::2]):
        sections[verb] = re.split(r"^\.Sh ", text, flags=re.M)[0]
    return sections


def man_flags(text):
    """What .Fl (and .It Fl, .Op Fl) name: `Fl -long` is --long, `Fl x` is -x; several words after one Fl are all flags."""
    found = set()
    for line in re.findall(r"^\.(?:It |Op )?(Fl .*)$", text, re.M):
        in_flags = False
        for word in line.split():
            if word in ("Ar", "Cm"):
                in_flags = False
            elif word == "Fl":
                in_flags = True
            elif in_flags and re.fullmatch(r"-?[A-Za-z][\w-]*", word):
                found.add("-" + word)
    return found


def check_man(top, helps):
    sections = man_sections(read("man/ckpt.1"))
    for verb, text in {"": top, **helps}.items():
        name = f"ckpt {verb}".strip()
        if verb not in sections:
            yield f"man/ckpt.1: no section on {name}"
            continue
        have, told = flags_of(text), man_flags(sections[verb])
        if verb:
            have -= {"-h", "--help"}
            told -= flags_of(top)
        for flag in sorted(have - told):
            yield f"man/ckpt.1: {name}: {flag} is not documented"
        for flag in sorted(told - have):
            yield f"man/ckpt.1: {name}: {flag} does not exist"
    for verb in sorted(set(sections) - set(helps) - {""}):
        yield f"man/ckpt.1: the verb {verb} does not exist"


def check_readme(verbs):
    rows = dict(re.findall(r"^\| `ckpt ([a-z-]+)` \| (.*) \|$", read("README.md"), re.M))
    for verb in sorted(set(verbs) ^ set(rows)):
        yield f"README.md: the table of verbs and ckpt --help differ on {verb}"
    for verb in set(verbs) & set(rows):
        if rows[verb] != verbs[verb]:
            yield f"README.md: {verb}: '{rows[verb]}' where ckpt --help says '{verbs[verb]}'"


def check_completions():
    for shell, name in COMPLETIONS.items():
        path = f"completions/{name}"
        if not os.path.exists(os.path.join(ROOT, path)) or read(path) != run("completion", shell):
            yield f"{path}: is not what `ckpt completion {shell}` prints: run make completions"


def check_mandoc():
    if not shutil.which("mandoc"):
        print("mandoc is not here: the man pages are not linted")
        return
    for name in sorted(name for name in os.listdir(os.path.join(ROOT, "man")) if name[-1].isdigit()):
        page = os.path.join(ROOT, "man", name)
        result = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], text=True, stdout=subprocess.PIPE)
        yield from result.stdout.splitlines()


def check_commands(where, text, helps):
    """Verbs and options that the text gives to ckpt exist; a command ends with its line."""
    for verb, line in re.findall(r"\bckpt ([a-z-]+)( [^|>&;\n]*)", text):
        if verb not in helps:
            yield f"{where}: there is no ckpt {verb}"
            continue
        known = flags_of(helps[verb]) | flags_of(run("--help"))
        for flag in re.findall(r" (--?[a-zA-Z][a-z-]*)", line):
            if flag not in known:
                yield f"{where}: ckpt {verb} has no {flag}"


def check_from(helps):
    """What ckpt-from(7) says is the same as another tool's, ckpt has: its verb, and each option of the row."""
    same = 0
    for words, text in re.findall(r"^\.It Ql (.*)\n((?:(?!\.It |\.El).*\n)*)", read("man/ckpt-from.7"), re.M):
        yield from check_commands("ckpt-from(7)", "\n".join(re.findall(r"^\.Ql (ckpt .*)", text, re.M)), helps)
        verb = next((word for word in words.split()[1:] if word in helps), None)
        known, named = set().union(*map(flags_of, [run("--help"), *helps.values()])), man_flags(text)
        if verb and text.startswith("The same"):
            same += 1
            known = flags_of(helps[verb])
            named |= set(re.findall(r" (--?[a-zA-Z][a-z-]*)", words))
        yield from (f"ckpt-from(7): {words}: ckpt {verb or ''} has no {flag}" for flag in sorted(named - known))
    if not same:
        yield "ckpt-from(7): no row says that anything is the same"


def check_recipes(helps):
    """What the README says to put into files can be read by what reads them."""
    found = re.findall(r"^```(yaml|bash)\n(.*?)^```", read("README.md"), re.M | re.S)
    if not found:
        yield "README.md: the recipes are gone"
    for kind, text in found:
        if kind == "yaml":
            try:
                yaml.safe_load(text)
            except yaml.YAMLError as error:
                yield f"README.md: {error}"
        else:
            result = subprocess.run(["bash", "-n"], input=text, text=True, stderr=subprocess.PIPE)
            yield from (f"README.md: {line}" for line in result.stderr.splitlines())
        yield from check_commands("README.md", text.replace("\\\n", " "), helps)


def check_version():
    """Where this version is named, it is this one."""
    version = json.loads(run("version", "--json"))["version"]
    for path, pattern in (("README.md", r"\bckpt[_-](\d+\.\d+\.\d+)"), ("cli/package/changelog", r"\Ackpt \((\S+)-")):
        named = sorted(set(re.findall(pattern, read(path))))
        if named != [version]:
            yield f"{path}: names {', '.join(named) or 'no version'}; ckpt is {version}"
    if f"\n## {version}\n" not in read("CHANGELOG.md"):
        yield f"CHANGELOG.md: has no heading '## {version}'"


def main():
    top = run("--help")
    verbs = verbs_of(top)
    helps = {verb: run(verb, "--help") for verb in verbs}
    findings = [*check_man(top, helps), *check_readme(verbs), *check_completions(), *check_mandoc(), *check_recipes(helps),
                *check_from(helps), *check_version()]
    print("\n".join(findings))
    print(f"{len(verbs)} verbs, {len(findings)} findings")
    return 1 if findings or not verbs else 0


sys.exit(main())
