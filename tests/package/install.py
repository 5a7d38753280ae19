#!/usr/bin/env python3
"""`make install` puts everything in its place, and asks neither apt nor dpkg for anything.

usage: install.py BUILD_FOLDER
"""
import os
import sys

from sandbox import SKIPPED, SOURCE, enter, host_feature, main, run, same_bytes, tree

WITNESSED = ("apt", "apt-get", "dpkg", "dpkg-query")


def replace_package_tools(work):
    """In place of each of them stands a program that leaves a note and fails."""
    path = f"{work}/witness"
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(f'#!/bin/sh\necho "$0 $*" >>{work}/called\nexit 99\n')
    os.chmod(path, 0o755)
    for tool in WITNESSED:
        if os.path.exists(f"/usr/bin/{tool}"):
            run("mount", "--bind", path, f"/usr/bin/{tool}")


def installed_without_apt(work):
    replace_package_tools(work)
    run("make", "-C", SOURCE, "install", f"DESTDIR={work}/root", "PREFIX=/opt/ckpt")
    assert not os.path.exists(f"{work}/called"), open(f"{work}/called", encoding="utf-8").read()


def everything_is_in_its_place(work):
    there = f"{work}/root/opt/ckpt"
    assert tree(f"{work}/root")[:2] == ["opt", "opt/ckpt"], tree(f"{work}/root")
    for name in sorted(os.listdir(f"{SOURCE}/man")):
        folder = f"man/man{name[-1]}" if name[-1].isdigit() else "ckpt"
        same_bytes(f"{there}/share/{folder}/{name}", f"man/{name}")
    for place, source in {"bash-completion/completions/ckpt": "ckpt.bash", "zsh/site-functions/_ckpt": "_ckpt",
                          "fish/vendor_completions.d/ckpt.fish": "ckpt.fish"}.items():
        same_bytes(f"{there}/share/{place}", f"completions/{source}")


def it_finds_its_library(work):
    there = f"{work}/root/opt/ckpt"
    library = host_feature("libckpt-cuda.so", f"{there}/bin/ckpt")
    assert library["present"] and library["detail"].startswith(f"{there}/lib"), library


def trainers_find_the_flash_library(work):
    there = f"{work}/root/opt/ckpt"
    same_bytes(f"{there}/include/ckpt_flash.h", "lib/flash/client/ckpt_flash.h")
    same_bytes(f"{there}/include/ckpt_safe_point.h", "lib/flash/client/ckpt_safe_point.h")
    with open(f"{there}/share/pkgconfig/ckpt-flash.pc", encoding="utf-8") as file:
        assert "-lckpt-flash" in file.read()
    code = "import ckpt_flash._library as l; l.Library.shared(); print(l.find_library(), l.find_binary(l.find_library()))"
    told = run("python3", "-c", code, env={"PATH": f"{there}/bin:/usr/bin", "PYTHONPATH": f"{there}/share/ckpt/torch",
                                           "PYTHONDONTWRITEBYTECODE": "1"})
    library, binary = told.split()
    assert library.startswith(f"{there}/lib") and binary == f"{there}/bin/ckpt", told


enter("make")
if os.path.realpath(sys.argv[1]) != f"{SOURCE}/build":
    print("skipped: install.py: make install takes what is in build/, and this is another folder")
    sys.exit(SKIPPED)
main(installed_without_apt, everything_is_in_its_place, it_finds_its_library, trainers_find_the_flash_library)
