#!/usr/bin/env python3
"""ckpt run: the program takes ckpt's place, with the interposer preloaded; what that cannot be done to is refused."""
import os
import shutil
import signal
import struct
import subprocess

from prompt import CKPT, main, problems, run

LIBRARY = os.path.join(os.path.dirname(CKPT), "libckpt-cuda.so")


def elf(machine=62, segments=()):
    """An ELF file with nothing but a header and segments of these types."""
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    return head + b"".join(struct.pack("<IIQQQQQQ", kind, 4, 0, 0, 0, 0, 0, 0) for kind in segments)


def executable(name, content, mode=0o755):
    with open(name, "wb") as stream:
        stream.write(content)
    os.chmod(name, mode)
    return "./" + name


def exit_codes_and_arguments_are_the_program_s():
    yield from problems(["run", "--", "sh", "-c", "exit 7"], 7)
    yield from problems(["run", "--", "printf", "%s|", "--json", "-n", "--", "a b"], 0, r"^--json\|-n\|--\|a b\|$")
    yield from problems(["run", "true"], 0)
    result = run("run", "--", "sh", "-c", "kill -TERM $$")
    if result.returncode != -signal.SIGTERM:
        yield f"a program that ends by a signal: {result.returncode}"


def the_pid_is_the_caller_s_child():
    child = subprocess.Popen([CKPT, "run", "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True)
    if int(child.communicate()[0]) != child.pid:
        yield "the program has another pid than ckpt had"


def preloaded_libraries_are_kept():
    for before, expected in (("", LIBRARY), ("libc.so.6", LIBRARY + ":libc.so.6"), (LIBRARY, LIBRARY)):
        yield from problems(["run", "--", "printenv", "LD_PRELOAD"], 0, f"^{expected}\n$", env={"LD_PRELOAD": before} if before else None)


def signals_are_as_the_caller_had_them():
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    def ignored(*before):
        done = subprocess.run([*before, "grep", "SigIgn", "/proc/self/status"], text=True, stdout=subprocess.PIPE, preexec_fn=ignore)
        return int(done.stdout.split()[1], 16)
    alone, under_run = ignored(), ignored(CKPT, "run", "--")
    if alone & 1 << signal.SIGHUP - 1 == 0 or under_run != alone:
        yield f"ignored signals: {under_run:#x}, without ckpt run {alone:#x}"


def what_cannot_be_preloaded_is_refused():
    yield from problems(["run", "--", "no-such-program"], 4, err="no-such-program: no such program")
    yield from problems(["run", "--", executable("data", b"text", 0o644)], 5, err="data: may not be executed")
    yield from problems(["run", "--", executable("text", b"echo hello\n")], 6, err="neither a program nor a script")
    yield from problems(["run", "--", executable("static", elf(segments=[1]))], 6, err="static: is linked statically")
    yield from problems(["run", "--", executable("arm", elf(machine=183, segments=[1, 3]))], 6, err="arm: is a program for another architecture")
    yield from problems(["run", "--", executable("cut", elf(segments=[1, 3])[:90])], 6, err="cut: has a damaged header")
    yield from problems(["run", "--", executable("short", b"\x7fELF\x02")], 6, err="short: is not a program")
    yield from problems(["run", "--", executable("script", b"#!./static\n")], 6, err="static: is linked statically")
    yield from problems(["run", "--", executable("loop", b"#!./loop\n")], 6, err="too deep")
    yield from problems(["run", "--", executable("empty", b"#!\n")], 6, err="names no interpreter")
    yield from problems(["run"], 2, err="COMMAND.*required")


def a_set_user_id_program_is_refused():
    if os.geteuid() != 0:
        return
    shutil.copy("/bin/true", "other")
    os.chown("other", 1, 1)
    os.chmod("other", 0o4755)
    yield from problems(["run", "--", "./other"], 6, err="changes its user")


def without_a_driver_cuda_is_absent():
    if os.path.exists("/dev/nvidiactl"):
        return
    open_it = "import ctypes\ntry:\n  ctypes.CDLL('%s')\nexcept OSError as e:\n  print('none:', e)"
    for name in ("libcuda.so.1", "libcuda.so"):
        yield from problems(["run", "--", "/usr/bin/python3", "-c", open_it % name], 0, r"^none: ", env={"CKPT_CUDA_DRIVER": "none"})
    linked = "import ctypes; print(ctypes.CDLL(None).cuInit(0), ctypes.CDLL(None).cuDeviceGetCount(None))"
    yield from problems(["run", "--", "/usr/bin/python3", "-c", linked], 0, r"^100 100\n$", env={"CKPT_CUDA_DRIVER": "none"})


main(exit_codes_and_arguments_are_the_program_s, the_pid_is_the_caller_s_child, preloaded_libraries_are_kept, signals_are_as_the_caller_had_them,
     what_cannot_be_preloaded_is_refused, a_set_user_id_program_is_refused, without_a_driver_cuda_is_absent)
