#!/usr/bin/env python3
"""Every way to a function of the driver leads to the interposer, and a program that has none of it loads no driver.

usage: lookups.py CKPT STANDIN NEWER_DRIVER. Starts itself again under `ckpt run`.
"""
import ctypes
import os
import subprocess
import sys

CKPT, STANDIN, NEWER = sys.argv[1:4]
INTERPOSER = "libckpt-cuda.so"
NOT_FOUND = 500
OF_CUDA_13_5 = ("cuMemcpyWithAttributesAsync", "cuMemcpy3DWithAttributesAsync", "cuFabricCpyBatchAsync", "cuLaunchHostFunc_v2",
                "cuMulticastBindMem_v2", "cuLogicalEndpointBindMem", "cuStreamBeginRecaptureToGraph", "cuStreamBeginCaptureToCig",
                "cuStreamEndCaptureToCig")


class DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


LIBC = ctypes.CDLL(None)


def library_of(address):
    info = DlInfo()
    assert LIBC.dladdr(ctypes.c_void_p(address), ctypes.byref(info)) != 0
    return os.path.basename(os.path.realpath(info.file.decode()))


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def proc_address(driver, name, version=13000, flags=0):
    found, status = ctypes.c_void_p(), ctypes.c_int(-1)
    code = driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status))
    return found.value if code == 0 else None


def mapped(name):
    with open("/proc/self/maps", encoding="ascii") as maps:
        return any(name in line for line in maps)


def nothing_is_loaded_before_the_first_call():
    if mapped(STANDIN):
        yield "the driver is mapped without a use of it"
    if len(os.listdir("/proc/self/task")) != 1:
        yield "there is a second thread without a use of CUDA"
    ctypes.CDLL("libcuda.so.1")
    if mapped(STANDIN):
        yield "dlopen alone loads the driver"


def every_way_to_open_it():
    for name in ("libcuda.so.1", "libcuda.so", STANDIN):
        for function in ("cuInit", "cuMemAlloc_v2", "cuDriverGetVersion"):
            where = library_of(address(getattr(ctypes.CDLL(name), function)))
            if where != INTERPOSER:
                yield f"dlopen({name}), dlsym({function}): {where}"
    where = library_of(address(LIBC.cuMemAlloc_v2))
    if where != INTERPOSER:
        yield f"dlsym(RTLD_DEFAULT): {where}"


def get_proc_address():
    driver = ctypes.CDLL("libcuda.so.1")
    for name in ("cuMemAlloc", "cuMemFree", "cuLaunchKernel", "cuMemcpyHtoDAsync", "cuInit", "cuGetProcAddress", "cuStreamBeginCapture", *OF_CUDA_13_5):
        for flags in (0, 2):
            where = library_of(proc_address(driver, name, flags=flags))
            if where != INTERPOSER:
                yield f"cuGetProcAddress({name}, {flags}): {where}"
    if library_of(proc_address(driver, "cuDriverGetVersion")) == INTERPOSER:
        yield "a function that is not wrapped costs a jump"
    if proc_address(driver, "cuNoSuchThing") is not None:
        yield "a function that is nowhere is found"


def what_no_driver_has():
    if hasattr(ctypes.CDLL("libcuda.so.1"), "cuNoSuchThing"):
        yield "dlsym(cuNoSuchThing): the driver has none"


def calls_work():
    driver = ctypes.CDLL("libcuda.so")
    count, version = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < 1:
        yield f"no device: {count.value}"
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value < 12000:
        yield f"version {version.value}"
    if not mapped(STANDIN):
        yield "the driver is not mapped"
    names = [open(f"/proc/self/task/{task}/comm", encoding="ascii").read().strip() for task in os.listdir("/proc/self/task")]
    if names.count("ckpt-agent") != 1:
        yield f"threads: {names}"
    driver.cuInit(0)
    if len(os.listdir("/proc/self/task")) != len(names):
        yield "cuInit again starts another agent"


def a_newer_driver():
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuOfTomorrow() != 42:
        yield "dlsym does not reach a function that only the driver knows"
    if ctypes.CFUNCTYPE(ctypes.c_int)(proc_address(driver, "cuOfTomorrow"))() != 42:
        yield "cuGetProcAddress does not reach a function that only the driver knows"
    for name in ("cuMemcpy", "cuGLInit"):
        if hasattr(driver, name):
            yield f"dlsym({name}): this driver has none"
    if LIBC.cuGLInit() != NOT_FOUND:
        yield "a call that the driver lacks answers something else than NOT_FOUND"


def program_without_cuda():
    for command in (["/bin/echo", "hello"], ["/bin/sh", "-c", "echo hello"], [sys.executable, "-c", "import threading; print('hello')"]):
        plain = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        run = subprocess.run([CKPT, "run", "--", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if (run.returncode, run.stdout) != (plain.returncode, plain.stdout):
            yield f"{command}: {run.returncode} {run.stdout}"
    shell = f"ldd {sys.executable} >/dev/null; grep -c cuda /proc/self/maps"
    if subprocess.run([CKPT, "run", "--", "sh", "-c", shell], stdout=subprocess.PIPE, text=True, check=False).stdout.strip() == "0":
        yield "what a program starts is not interposed"


INSIDE = {
    "standin": [nothing_is_loaded_before_the_first_call, every_way_to_open_it, get_proc_address, what_no_driver_has, calls_work],
    "newer": [a_newer_driver],
}


def main():
    if len(sys.argv) > 4:
        found = [f"{check.__name__}: {problem}" for check in INSIDE[sys.argv[4]] for problem in check()]
    else:
        found = list(program_without_cuda())
        for part, driver in (("standin", STANDIN), ("newer", NEWER)):
            environment = {**os.environ, "CKPT_CUDA_DRIVER": driver}
            command = [CKPT, "run", "--", sys.executable, __file__, CKPT, STANDIN, NEWER, part]
            done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
            found += [done.stdout + f"exit {done.returncode}"] if done.returncode != 0 else []
    print("\n".join(found))
    return 1 if found else 0


sys.stdout.flush()
STATUS = main()
sys.stdout.flush()
os._exit(STATUS)
