#!/usr/bin/env python3
"""Both packages are made. The Debian one is installed into a root folder with a C library and nothing else, run there
and removed; the tarball's binary runs in a root folder that has nothing but it, and dumps and restores a process there.

usage: packages.py BUILD_FOLDER VERSION COUNTER
"""
import glob
import gzip
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import become_subreaper, read_text, wait_until
from sandbox import SOURCE, change_root_to, enter, holds, host_feature, main, run, same_bytes, tree
from small_checkpoints import floats, safetensors

BUILD, VERSION, COUNTER = (os.path.abspath(sys.argv[1]), sys.argv[2], os.path.abspath(sys.argv[3]))
MAN_PAGES = [name for name in sorted(os.listdir(os.path.join(SOURCE, "man"))) if name[-1].isdigit()]
COMPLETIONS = {"bash-completion/completions/ckpt": "ckpt.bash", "fish/vendor_completions.d/ckpt.fish": "ckpt.fish"}


def only(pattern):
    found = glob.glob(pattern)
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def deb_of(work):
    return only(f"{work}/out/*.deb")


def packages_are_made(work):
    run("cmake", "--build", BUILD, "--target", "ckpt-static", "package_counter")
    run(f"{SOURCE}/cli/package/make_packages.sh", BUILD, VERSION, f"{work}/out", env={**os.environ, "CKPT_PACKAGE_LEVEL": "1"})
    names = sorted(os.listdir(f"{work}/out"))
    assert names == [f"ckpt-{VERSION}-linux-x86_64.tar.gz", f"ckpt_{VERSION}-0ckpt1_amd64.deb"], names


def another_version_is_refused(work):
    text = run(f"{SOURCE}/cli/package/make_packages.sh", BUILD, "99.0.0", f"{work}/none", status=1)
    holds(text, f"cli/package/changelog is of {VERSION}, the source of 99.0.0")


def the_deb_needs_libc_alone(work):
    fields = run("dpkg-deb", "--field", deb_of(work))
    assert re.search(r"^Depends: libc6 \(>= 2\.\d+\)$", fields, re.M), fields
    holds(fields, "Recommends: libcurl4, libisal2, libnftables1\n", f"Version: {VERSION}-", "Architecture: amd64")
    assert "Pre-Depends" not in fields, fields
    for line in run("dpkg-deb", "--contents", deb_of(work)).splitlines():
        assert re.match(r"(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--) root/root ", line), line


def lintian_finds_nothing(work):
    if not shutil.which("lintian"):
        print("skipped: lintian_finds_nothing: lintian is not installed (make deps LINT_PACKAGES=lintian)")
        return
    run("lintian", "--allow-root", "--fail-on", "error,warning", deb_of(work))


def make_root(root):
    """A root folder with this system's C library, of which its dpkg knows, and nothing else."""
    admin = f"{root}/var/lib/dpkg"
    for folder in ("info", "updates", "triggers"):
        os.makedirs(f"{admin}/{folder}")
    names = ("Version", "Architecture", "Maintainer")
    libc = run("dpkg-query", "-W", "-f", "".join(f"{name}: ${{{name}}}\n" for name in names), "libc6")
    with open(f"{admin}/status", "w", encoding="utf-8") as stream:
        stream.write(f"Package: libc6\nStatus: install ok installed\n{libc}Description: C library\n\n")
    for library in re.findall(r"(/\S+) \(0x", run("ldd", f"{BUILD}/ckpt")):
        os.makedirs(root + os.path.dirname(library), exist_ok=True)
        shutil.copy(library, root + library)
    os.mkdir(f"{root}/proc")


def dpkg(root, *arguments):
    # Docker's Debian leaves manual pages out of everything.
    return run("dpkg", f"--root={root}", f"--log={root}.log", "--path-include=/*", *arguments)


def converts_and_inspects(ckpt, root):
    """A conversion of a small checkpoint in that root folder, and what is told of it."""
    safetensors(f"{root}/model.safetensors", {"weight": ("F32", [2, 3], floats(6)), "bias": ("F32", [3], floats(3))})
    run(ckpt, "convert", "/model.safetensors", "/model", "--to", "torch_dist", root=root, umask=0o027)
    assert os.stat(f"{root}/model").st_mode & 0o7777 == 0o750, oct(os.stat(f"{root}/model").st_mode)
    holds(run(ckpt, "inspect", "/model", root=root), "weight", "2x3", "2 tensors")
    holds(run(ckpt, "verify", "/model", root=root), "torch_dist is sound")
    shutil.rmtree(f"{root}/model")
    os.unlink(f"{root}/model.safetensors")


def the_deb_is_installed_run_and_removed(work):
    root = f"{work}/debian"
    make_root(root)
    before = tree(root)
    dpkg(root, "--install", deb_of(work))
    dpkg(root, "--verify", "ckpt")
    holds(run("/usr/bin/ckpt", "--version", root=root), f"ckpt {VERSION} (", "linked dynamically")
    converts_and_inspects("/usr/bin/ckpt", root)
    run("mount", "-t", "proc", "proc", f"{root}/proc")
    library = host_feature("libckpt-cuda.so", "/usr/bin/ckpt", root)
    assert library["detail"] == "/usr/lib/ckpt/libckpt-cuda.so", library
    run("umount", f"{root}/proc")
    documents_are_in_place(f"{root}/usr/share")
    for purge in ("--remove", "--purge"):
        dpkg(root, purge, "ckpt")
    # dpkg's own notes of what it did.
    left = [path for path in set(tree(root)) - set(before) if not path.startswith("var/lib/dpkg/")]
    assert not left, f"left behind: {left}"
    assert not glob.glob(f"{root}/var/lib/dpkg/info/ckpt.*")


def documents_are_in_place(share):
    for page in MAN_PAGES:
        with gzip.open(f"{share}/man/man{page[-1]}/{page}.gz") as packed, open(f"{SOURCE}/man/{page}", "rb") as source:
            assert packed.read() == source.read(), page
    for place, source in {**COMPLETIONS, "zsh/vendor-completions/_ckpt": "_ckpt"}.items():
        same_bytes(f"{share}/{place}", f"completions/{source}")
    same_bytes(f"{share}/ckpt/ckpt-json.schema.json", "man/ckpt-json.schema.json")
    holds("\n".join(tree(f"{share}/doc/ckpt")), "changelog.Debian.gz", "changelog.gz", "copyright", "README.md.gz")


def the_tarball_has_everything_but_the_gpu_library(work):
    run("tar", "-C", work, "-xzf", only(f"{work}/out/*.tar.gz"))
    there = f"{work}/ckpt-{VERSION}"
    for page in MAN_PAGES:
        same_bytes(f"{there}/share/man/man{page[-1]}/{page}", f"man/{page}")
    for place, source in {**COMPLETIONS, "zsh/site-functions/_ckpt": "_ckpt"}.items():
        same_bytes(f"{there}/share/{place}", f"completions/{source}")
    same_bytes(f"{there}/share/ckpt/ckpt-json.schema.json", "man/ckpt-json.schema.json")
    for name in ("LICENSE", "README.md", "CHANGELOG.md"):
        same_bytes(f"{there}/{name}", name)
    assert not [path for path in tree(there) if "libckpt" in path]


def its_binary_runs_where_nothing_else_is(work):
    root = f"{work}/empty"
    os.mkdir(root)
    shutil.copy(f"{work}/ckpt-{VERSION}/bin/ckpt", root)
    assert tree(root) == ["ckpt"]
    text = run("/ckpt", "--version", root=root)
    holds(text, f"ckpt {VERSION} (", "CUDA kernels: no", "linked statically, without GPUs and nftables")
    document = json.loads(run("/ckpt", "--version", "--json", root=root))
    assert document["linked"] == "statically" and not document["gpus"] and not document["nftables"], document
    converts_and_inspects("/ckpt", root)
    assert tree(root) == ["ckpt"]


def it_refuses_by_name_what_loads_a_library(work):
    """What is refused is there to be loaded: only the linkage is in the way."""
    static = f"{work}/ckpt-{VERSION}/bin/ckpt"
    shutil.copy(f"{BUILD}/libckpt-cuda.so", f"{work}/ckpt-{VERSION}/bin")
    text = run(static, "run", "--", "/bin/true", status=6)
    holds(text, "this ckpt is linked statically, without GPUs and nftables",
          "hint: the ckpt of the Debian package, or built from source, has both")
    driver = {**os.environ, "CKPT_CUDA_DRIVER": "libc.so.6"}
    for name in ("nftables", "CUDA checkpoints", "libckpt-cuda.so", "CUDA driver", "device kernels"):
        feature = host_feature(name, static, env=driver)
        assert not feature["present"] and "linked statically" in feature["detail"], feature


def count_in(path):
    return int(read_text(path) or 0)


def it_dumps_and_restores_a_process_there(work):
    root = f"{work}/empty"
    shutil.copy(COUNTER, f"{root}/counter")
    os.mkdir(f"{root}/proc")
    run("mount", "-t", "proc", "proc", f"{root}/proc")

    counter = subprocess.Popen(["/counter", "/count"], preexec_fn=change_root_to(root), start_new_session=True)
    try:
        wait_until(lambda: count_in(f"{root}/count") > 10, "the program counts")
        run("/ckpt", "pre-dump", "-p", str(counter.pid), "-f", "/before", root=root)
        run("/ckpt", "dump", "-p", str(counter.pid), "-f", "/now", "--prev", "/before", root=root)
        counter.wait(20)
        at_dump = count_in(f"{root}/count")
        holds(run("/ckpt", "verify", "/now", root=root), "is sound")
        run("/ckpt", "restore", "-f", "/now", "-d", root=root)
        wait_until(lambda: count_in(f"{root}/count") > at_dump + 10, "the program goes on")
    finally:
        subprocess.run(["kill", "-9", str(counter.pid)], stderr=subprocess.DEVNULL, check=False)
        try:
            os.waitpid(counter.pid, 0)
        except ChildProcessError:
            pass


def users_are_those_of_the_files(work):
    """What /etc/nsswitch.conf names are libraries, which are not loaded: /etc/passwd is read whatever it says."""
    root = f"{work}/empty"
    os.mkdir(f"{root}/etc")
    with open(f"{root}/etc/nsswitch.conf", "w", encoding="utf-8") as stream:
        stream.write("passwd: strange\ngroup: strange\n")
    with open(f"{root}/etc/passwd", "w", encoding="utf-8") as stream:
        stream.write("root:x:0:0::/:/bin/sh\n")

    holds(run("/ckpt", "dump", "-p", "1", "-f", "/x", root=root, uid=4711, status=5), "belongs to root")
    for path in ("now", *[os.path.join("now", name) for name in tree(f"{root}/now")]):
        os.chown(f"{root}/{path}", 4711, 4711)
    holds(run("/ckpt", "restore", "-f", "/now", "-d", root=root, status=6),
          "belongs to user 4711, whose groups /etc/passwd, which a statically linked ckpt keeps to, does not know")


enter("dpkg", "dpkg-deb", "readelf", "strip", "chroot")
become_subreaper()
main(packages_are_made, another_version_is_refused, the_deb_needs_libc_alone, lintian_finds_nothing,
     the_deb_is_installed_run_and_removed, the_tarball_has_everything_but_the_gpu_library,
     its_binary_runs_where_nothing_else_is, it_refuses_by_name_what_loads_a_library,
     it_dumps_and_restores_a_process_there, users_are_those_of_the_files)
