#!/usr/bin/env python3
"""A library that is put into other people's programs: the newest glibc that it asks for is not newer than theirs may be.

usage: glibc.py NEWEST LIBRARY, such as 2.28 libckpt-cuda.so. Prints every symbol that asks for more; exit 1 if there is one.
"""
import re
import subprocess
import sys


def number(version):
    return tuple(int(part) for part in version.split("."))


def main():
    newest, library = sys.argv[1:]
    symbols = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    versions = subprocess.run(["readelf", "-VW", library], check=True, capture_output=True, text=True).stdout
    asked = set(re.findall(r"\bName: GLIBC_([0-9.]+)\b", versions))
    found = [f"{library}: asks for GLIBC_{version}" for version in sorted(asked, key=number) if number(version) > number(newest)]
    if found:
        found += [f"{library}: {symbol}" for symbol, version in re.findall(r"UND (\S+)@GLIBC_([0-9.]+)", symbols) if number(version) > number(newest)]
        found.append("an older version of each: plugins/interposer/old_glibc.S")
    if "GLIBC_ABI_DT_RELR" in versions:
        found.append(f"{library}: compact relocations, which glibc before 2.36 refuses")
    if not asked:
        found.append(f"{library}: asks for no version of glibc: is it a library?")
    print("\n".join(found) or f"{library}: glibc {max(asked, key=number)} and later")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
