#!/usr/bin/env python3
"""Sources: includes point down only, wrapped libraries stay where they are wrapped, JSON is not glued, no path of one machine, and no
class is defined twice in a namespace, of which the linker would take one.

usage: sources.py SOURCE_ROOT. Prints every finding; exit 1 if there is one. Long files are warnings.
"""
import os
import re
import sys

# Which boxes a box may include beside itself: the table of the architecture.
MAY_INCLUDE = {
    "cli": {"remote", "repository", "migrate", "engine", "schedule", "parity", "state", "flash", "model", "formats", "plugins", "store", "tensor", "base"},
    "migrate": {"engine", "state", "records", "proc", "store", "base"},
    "engine": {"memory", "state", "records", "proc", "device", "store", "base"},
    "memory": {"state", "records", "proc", "device", "store", "base"},
    "state": {"records", "proc", "store", "base"},
    "store": {"records", "base"},
    "repository": {"store", "records", "remote", "base"},
    "records": {"base"},
    "flash": {"formats", "tensor", "proc", "base"},
    "model": {"formats", "tensor", "base"},
    "formats": {"tensor", "base"},
    "plugins": {"device", "base"},
    "proc": {"base"},
    "device": {"base"},
    "tensor": {"base"},
    "schedule": {"base"},
    "parity": {"base"},
    "remote": {"base"},
    "base": set(),
}
# Headers of wrapped libraries: which sources may name them.
WRAPPED = [
    (re.compile(r"CLI/"), lambda path: path in ("cli/app.cpp", "cli/config.cpp", "cli/options.cpp", "cli/verb_options.cpp"),
     "CLI11 stays behind cli/verb_options.h"),
    (re.compile(r"(nlohmann/|zstd|curl/)"), lambda path: path.endswith(".cpp") or path == "lib/remote/curl.h", "JSON, zstd and curl stay in .cpp files"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:home/\w+|Users/\w+|root|work|workspace|builds)/")
GLUED_JSON = re.compile(r'\\":')  # "\"key\": in a string literal
# A placeholder for a file elsewhere (lib/base/virtual_file.h) reads as zeros by these.
RAW_READ = re.compile(r"(?<!\w)::p?read(v|64)?\(|\bmmap\(|\bifstream\b|\bfopen\(|copy_file_range\(|sendfile\(")
READS_CHECKPOINTS = ("formats/", "lib/tensor/", "lib/model/", "lib/store/")
# The trace's compact lines, and a pickle with an indentation of its own.
MAY_GLUE_JSON = ("lib/base/json_", "lib/base/trace.cpp", "formats/pickle/render.cpp")
# What of a source says where namespaces and classes begin and end; what else has braces in it is matched first.
BRACES = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^\s*\#(?:[^\n\\]|\\.)*|[{}]|\bnamespace(?:\s+([\w:]+))?\s*(?=\{)
    |\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:alignas\(\w+\)\s+)?(\w+)\s*(?:final\s*)?(?::(?!:)[^{;()]*)?(?=\{)""", re.S | re.M | re.X)
SKIPPED = {".git", "__pycache__", ".cache"}
LONG_FILE = 600
LONG_LINE = 120  # .clang-format, ColumnLimit


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith("build")]
        for name in names:
            if name != ".git":  # of a worktree
                yield os.path.relpath(os.path.join(folder, name), root)


def box_of(path):
    """The architecture's box of a source or of an include, None for what lies outside (tests, system headers)."""
    parts = path.split("/")
    if path.startswith("lib/state/") and parts[-1] == "record.h":
        return "records"  # what an image says of a kind lies below the image, the code that captures and restores it above
    if parts[0] == "lib" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ("cli", "formats", "plugins") and len(parts) > 1 else None


def check_include(path, quote, target):
    box = box_of(path)
    if quote == '"' and box is not None:
        if box not in MAY_INCLUDE:
            return f"the folder {box} is no box of the architecture"
        wanted = box_of(target)
        if wanted is None:
            return f'"{target}" is not root-relative'
        if wanted != box and wanted not in MAY_INCLUDE[box]:
            return f'{box} must not include {wanted} ("{target}")'
    if path.startswith(("cli/", "lib/", "formats/", "plugins/")):
        for header, allowed, rule in WRAPPED:
            if header.match(target) and not allowed(path):
                return f"<{target}>: {rule}"
    return None


def glues_json(path, line):
    return (path.startswith(("cli/", "lib/", "formats/")) and not path.startswith(MAY_GLUE_JSON)
            and GLUED_JSON.search(line) is not None)


def check_source(path, lines):
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        problem = check_include(path, *found.groups()) if found else None
        if problem:
            yield f"{path}:{number}: {problem}"
        if glues_json(path, line):
            yield f"{path}:{number}: JSON glued from strings: lib/base/json_writer.h writes it"
        if path.startswith(READS_CHECKPOINTS) and RAW_READ.search(line) and "MAP_ANONYMOUS" not in line and not line.lstrip().startswith("//"):
            yield f"{path}:{number}: a file is read past lib/base/io.h, which knows of files that are elsewhere"


def class_names(text):
    """The names of classes and enumerations that are defined outside of functions, classes and unnamed namespaces."""
    open_blocks, begins = [], None
    for found in BRACES.finditer(text):
        token = found.group(0)
        if token == "{":
            open_blocks.append(begins)
            begins = None
        elif token == "}":
            del open_blocks[-1:]
        elif token.startswith("namespace"):
            begins = found.group(2)
        elif found.group(3):
            if None not in open_blocks:
                yield "::".join(open_blocks + [found.group(3)])
            begins = None


def self_test():
    """The rules find what they are for."""
    for path, quote, target in [("lib/base/a.cpp", '"', "lib/proc/b.h"), ("formats/x/a.cpp", '"', "lib/store/image.h"),
                                ("lib/proc/a.h", '"', "lib/store/image.h"), ("lib/store/a.h", "<", "zstd.h"),
                                ("lib/engine/a.cpp", "<", "CLI/CLI.hpp"), ("cli/a.h", "<", "CLI/CLI.hpp"), ("cli/a.h", "<", "nlohmann/json.hpp"),
                                ("lib/base/a.cpp", '"', "io.h"), ("lib/engine/a.cpp", '"', "cli/console.h")]:
        assert check_include(path, quote, target), (path, target)
    for path, quote, target in [("cli/a.cpp", '"', "lib/engine/dump.h"), ("lib/store/a.cpp", "<", "zstd.h"),
                                ("cli/app.cpp", "<", "CLI/CLI.hpp"), ("lib/base/a.cpp", '"', "lib/base/io.h")]:
        assert not check_include(path, quote, target), (path, target)
    assert glues_json("cli/a.cpp", r'text += ", \"key\": ";') and not glues_json("lib/base/trace.cpp", r'"{\"a\": 1}"')
    assert RAW_READ.search("n = ::pread(fd, x, 1, 0)") and not RAW_READ.search("io::pread_exact(fd, out, 0, name)")
    assert list(class_names('#define X {\nnamespace a::b {\nclass C : D { struct E {}; };\nenum F { kG };\nnamespace {\nclass H {};\n}\n'
                            'struct C::I {};\nauto text = "{";  // {\nunion J {};\n}\n')) == ["a::b::C", "a::b::F", "a::b::J"]
    assert MACHINE_PATH.search("/".join((" ", "home", "me", "x"))) and not MACHINE_PATH.search("/proc/self")


def main():
    self_test()
    root = sys.argv[1]
    findings, seen, classes = [], 0, {}
    for path in sorted(files(root)):
        try:
            with open(os.path.join(root, path), encoding="utf-8") as stream:
                lines = stream.read().splitlines()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary fixtures
        if path.endswith((".cpp", ".h", ".c")):
            seen += 1
            findings += check_source(path, lines)
            findings += [f"{path}:{number}: {len(line)} columns, {LONG_LINE} at most" for number, line in enumerate(lines, 1)
                         if len(line) > LONG_LINE]
            for name in class_names("\n".join(lines)) if path.startswith(("cli/", "lib/", "formats/", "plugins/")) else ():
                if classes.setdefault(name, path) != path:
                    findings.append(f"{path}: {name} is defined in {classes[name]}, too")
            if len(lines) > LONG_FILE:
                print(f"warning: {path}: {len(lines)} lines: has a second job moved in?")
        if path != "tests/lint/sources.py" and not path.startswith("tests/fuzz/corpus/"):
            findings += [f"{path}:{number}: a path of one machine: {line.strip()[:80]}"
                         for number, line in enumerate(lines, 1) if MACHINE_PATH.search(line)]
    print("\n".join(findings))
    print(f"{seen} sources, {len(findings)} findings")
    return 1 if findings or seen == 0 else 0


sys.exit(main())
