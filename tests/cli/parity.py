#!/usr/bin/env python3
"""protect, rebuild, verify --parity: folders of ranks are lost, damaged, and come back byte for byte with names, modes and times."""
import glob
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main, problems, run


def fill(rank, size):
    """A rank's folder: files of odd sizes, empty ones, folders, links, modes, times."""
    folder = f"r{rank}"
    os.makedirs(f"{folder}/inner/empty")
    generator = random.Random(rank)
    for name, length in (("data.bin", size + 7 * rank), ("inner/small", 300 + rank), ("inner/nothing", 0), ("name with\nlines", 5)):
        with open(f"{folder}/{name}", "wb") as out:
            out.write(generator.randbytes(length))
    os.symlink("data.bin", f"{folder}/link")
    os.chmod(f"{folder}/inner/small", 0o4750)
    os.utime(f"{folder}/data.bin", ns=(0, 1_577_934_245_123_456_789))
    os.utime(f"{folder}/inner", ns=(0, -1_500_000_001))
    return folder


def ranks(count, size=100_000):
    return [fill(rank, size * (1 + rank % 3)) for rank in range(count)]


def state(folders):
    """All that is to come back."""
    out = {}
    for folder in folders:
        for path in [folder] + sorted(os.path.join(above, name) for above, dirs, files in os.walk(folder) for name in dirs + files):
            st = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else open(path, "rb").read() if os.path.isfile(path) else None
            out[path] = (st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, content)
    return out


def lose(folder):
    shutil.rmtree(folder)
    for path in glob.glob(folder + ".ckpt-parity-*"):
        os.unlink(path)


def document(*arguments, code=0):
    result = run(*arguments, "--json")
    assert result.returncode == code, (arguments, result.returncode, result.stderr)
    return json.loads(result.stdout)


def every_scheme_brings_back_what_it_promises():
    folders = ranks(6)
    before = state(folders)
    with open("nodes", "w", encoding="ascii") as out:
        out.writelines(f"{rank} node{rank // 2}\n" for rank in range(6))
    for options, losses in ((["--scheme", "xor"], [[0], [5]]), (["--scheme", "partner"], [[2]]),
                            (["--scheme", "rs"], [[0, 1], [2, 5]]), (["--scheme", "rs", "--parity", "3"], [[1, 3, 5]]),
                            (["--scheme", "rs", "--topology", "nodes"], [[2, 3]]),
                            (["--topology", "nodes"], [[4, 5]])):
        yield from problems(["protect", *folders, *options], 0, err="^protected ")
        yield from problems(["verify", "--parity", *folders], 0, err="are whole")
        for lost in losses:
            for rank in lost:
                lose(folders[rank])
            health = document("verify", "--parity", *folders, code=1)
            if not health["repairable"] or health["ok"]:
                yield f"{options} without {lost}: {health}"
            yield from problems(["rebuild", *folders], 0, err="brought back ")
            if state(folders) != before:
                yield f"{options} without {lost}: not what it was"
            yield from problems(["verify", "--parity", *folders], 0, err="are whole")
    yield from problems(["rebuild", *folders], 0, err="nothing is lost")
    if len(glob.glob("*.ckpt-parity-*")) != 6:
        yield f"parity of earlier protections is left: {os.listdir('.')}"


def a_lost_folder_comes_back_elsewhere():
    folders = ranks(4)
    before = {path[2:]: what for path, what in state(folders[2:3]).items()}
    run("protect", *folders)
    lose("r2")
    yield from problems(["rebuild", "r0", "r1", "r3", "new/place"], 0, err="brought back 1 folder")
    after = {path[len("new/place"):]: what for path, what in state(["new/place"]).items()}
    if after != before:
        yield "not what it was"
    yield from problems(["verify", "--parity", "new/place", "r3", "r1", "r0"], 0, err="are whole")


def damage_is_noticed_and_who_can_repair_it_is_told():
    folders = ranks(4)
    before = state(folders)
    run("protect", *folders)
    times = os.stat("r1/data.bin")
    with open("r1/data.bin", "r+b") as out:
        out.seek(70_000)
        out.write(b"!")
    os.utime("r1/data.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    yield from problems(["verify", "--parity", *folders], 1, out="rank 1 on node1: data damaged, parity whole: r1/data.bin: .*from ranks 0, 2, 3",
                        err="can be brought back")
    yield from problems(["rebuild", *folders], 2, err="r1: exists and is not empty\n.*--force")
    yield from problems(["rebuild", *folders, "--force"], 0, err="brought back 1 folder and the parity of 0 ranks")
    if state(folders) != before:
        yield "damaged data: not what it was"
    parity = glob.glob("r3.ckpt-parity-*")[0]
    with open(parity, "r+b") as out:
        out.seek(20_000)
        byte = out.read(1)
        out.seek(20_000)
        out.write(bytes([byte[0] ^ 1]))
    yield from problems(["verify", "--parity", *folders], 1, out="rank 3 on node3: data whole, parity damaged", err="can be brought back")
    # Parity that looks whole is not: only reading tells.
    lose("r0")
    yield from problems(["rebuild", *folders], 1, err="more is lost than can be brought back")
    if os.path.exists("r0"):
        yield "a folder came back from damaged parity"


def what_was_written_since_brings_nothing_back():
    folders = ranks(2)
    run("protect", *folders)
    with open("r1/data.bin", "r+b") as out:
        out.write(b"anew")
    shutil.rmtree("r0")
    yield from problems(["rebuild", *folders, "--dry-run"], 0, out="rank 1 on node1: data damaged, parity whole: r1/data.bin: its bytes")
    yield from problems(["rebuild", *folders], 2, err="r1: exists and is not empty\n(.*\n)*.*--force")
    os.unlink(glob.glob("r0.ckpt-parity-*")[0])
    yield from problems(["rebuild", *folders], 1, err="more is lost than can be brought back")
    if os.path.exists("r0"):
        yield "a folder came back beside one that is newer"


def a_file_more_hides_no_damage():
    folders = ranks(3)
    run("protect", *folders)
    with open("r0/later", "w", encoding="ascii"):
        pass
    times = os.stat("r1/data.bin")
    with open("r1/data.bin", "r+b") as out:
        out.write(b"!!!!")
    os.utime("r1/data.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    yield from problems(["rebuild", *folders], 2, err="r1: exists and is not empty")
    yield from problems(["rebuild", *folders, "--force"], 0, err="brought back 1 folder")


def what_is_not_of_the_protection_is_named():
    folders = ranks(3)
    run("protect", *folders[:2])
    yield from problems(["verify", "--parity", *folders], 1, out="r2 is not of this protection of 2 ranks", err="r2: is not of this protection")
    yield from problems(["rebuild", *folders], 2, err="r2: is not of this protection of 2 ranks")
    os.chdir("r0")
    for path in glob.glob("../r0.ckpt-parity-*"):
        os.unlink(path)
    yield from problems(["rebuild", ".", "../r1"], 0, err="the parity of 1 rank")
    yield from problems(["verify", "--parity", ".", "../r1"], 0, err="are whole")
    os.chdir("..")


def root_makes_for_a_user_only_what_he_could_have_made():
    folders = ranks(2)
    if os.geteuid() != 0:
        return
    for folder in folders:
        for above, _, files in os.walk(folder):
            for path in [above] + [os.path.join(above, name) for name in files]:
                os.lchown(path, 1234, 5678)
        os.chmod(f"{folder}/inner", 0o2755)
        os.chmod(f"{folder}/inner/small", 0o750)

    def protect(mode, group):
        os.chmod("r0/inner/small", mode)
        os.lchown("r0/inner/nothing", 1234, group)
        run("protect", *folders)
        for path in glob.glob("*.ckpt-parity-*"):
            os.chown(path, 1234, 5678)
        before = state(folders)
        shutil.rmtree("r0")
        return before

    for mode, group, why in ((0o4750, 5678, "r0/inner/small: is set-user-ID or set-group-ID, and would come back by a parity file of user 1234"),
                             (0o2750, 5678, "r0/inner/small: is set-user-ID"), (0o750, 42, "r0/inner/nothing: is of group 42")):
        protect(mode, group)
        yield from problems(["rebuild", *folders], 5, err=why)
        if os.path.exists("r0"):
            yield "a refused folder came back"
        for path in glob.glob("*.ckpt-parity-*"):
            os.chown(path, 0, 0)
        yield from problems(["rebuild", *folders], 0, err="brought back 1 folder")
        os.chmod("r0/inner/small", 0o750)
    before = protect(0o750, 5678)
    yield from problems(["rebuild", *folders], 0, err="brought back 1 folder")
    if state(folders) != before:
        yield "what came back is not what was"
    yield from problems(["verify", "--parity", *folders], 0, err="are whole")
    os.chmod("r0/inner/small", 0o700)
    yield from problems(["verify", "--parity", *folders], 1, out="small: has another mode\nnothing is lost, but it is not what", err="nothing is lost, but it was changed")


def a_parity_file_of_a_later_version_is_skipped():
    folders = ranks(3)
    run("protect", *folders)

    def become_later(path):
        with open(path, "r+b") as file:
            head = bytearray(file.read(36))
            head[8] = 2
            file.seek(0)
            file.write(head + struct.pack("<I", crc32c(head)))

    become_later(glob.glob("r0.ckpt-parity-*")[0])
    yield from problems(["verify", "--parity", *folders], 1, out="rank 0 on node0: data whole, parity damaged: .*is of version 2; known is 1", err="can be brought back")
    shutil.rmtree("r1")
    shutil.rmtree("r2")
    for path in glob.glob("r[12].ckpt-parity-*"):
        become_later(path)
    yield from problems(["rebuild", *folders], 6, err="no parity file can be used: .*is of version 2")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def change_footer(path, change):
    """What a parity file says of its set is another, and its checksums are right."""
    with open(path, "rb") as file:
        content = file.read()
    magic, version, _, at, _, zero, _ = struct.unpack_from("<8sIIQQII", content)
    footer = json.loads(content[at:])
    change(footer)
    text = json.dumps(footer, separators=(",", ":")).encode()
    head = struct.pack("<8sIIQQI", magic, version, crc32c(text), at, len(text), zero)
    with open(path, "wb") as out:
        out.write(head + struct.pack("<I", crc32c(head)) + content[len(head) + 4:at] + text)


def files_that_contradict_each_other_are_refused():
    folders = ranks(4)
    run("protect", *folders[:2])
    run("protect", *folders[2:])
    epoch = int(glob.glob("r0.ckpt-parity-*")[0].rsplit("-", 1)[1], 16)
    stranger, = glob.glob("r2.ckpt-parity-*")

    def become(world, numbers):
        def change(footer):
            footer["epoch"], footer["world"] = epoch, world
            for member, number in zip(footer["members"], numbers):
                member["rank"] = number
        change_footer(stranger, change)

    for world, numbers in ((1 << 20, (1_000_000, 1_000_001)), (2, (0, 1)), (3, (2, 1))):
        become(world, numbers)
        for verb in (["verify", "--parity"], ["rebuild"]):
            yield from problems([*verb, *folders[:3]], 2 if world == 2 else 1, err="has the parity of rank 0, and so has" if world == 2 else "contradict each other")
    # Blocks so small that the table of their sums is a sparse file's whole length.
    change_footer(stranger, lambda footer: footer.update(chunk=1 << 38, block=64))
    yield from problems(["verify", "--parity", *folders[2:3]], 1, err="its footer contradicts itself")


def what_cannot_be_is_refused():
    ranks(2)
    yield from problems(["protect", "r0"], 2, err="xor: 1 rank on 1 node")
    yield from problems(["protect", "r0", "r1", "--scheme", "rs"], 2, err="rs: 2 ranks on 2 nodes: a set of 2 cannot survive the loss of 2")
    yield from problems(["protect", "r0", "r1", "--parity", "2"], 2, err="xor")
    yield from problems(["protect", "r0", "./r0"], 2, err="is named twice")
    yield from problems(["protect", "r0", "r1", "--failure-group", "rack"], 2, err="rank 0: nobody says in which rack it is\nhint: --topology")
    yield from problems(["protect", "r0", "missing"], 4, err="missing")
    yield from problems(["rebuild", "r0", "r1"], 4, err="nobody has parity of it")
    yield from problems(["verify", "r0", "r1"], 2, err="only --parity takes several")
    yield from problems(["verify", "--parity", "r0", "--strict"], 2, err="--parity")
    yield from problems(["verify", "--parity", "r0", "--max-memory", "1M"], 2, err="--parity")
    os.mkfifo("r1/pipe")
    yield from problems(["protect", "r0", "r1"], 6, err="r1/pipe: is neither a file, a folder nor a link")
    if glob.glob("*parity*") or glob.glob(".ckpt*"):
        yield f"something is left: {os.listdir('.')}"


def the_schedule_is_printed():
    folders = ranks(4)
    plan = document("protect", *folders, "--dry-run")
    for step in range(3):
        sends = [send for send in plan["sends"] if send["step"] == step]
        if [(send["from"], send["to"]) for send in sends] != [(i, (i + step + 1) % 4) for i in range(4)]:
            yield f"step {step}: {sends}"
    chunk = plan["sets"][0]["chunk_bytes"]
    if any(link["bytes"] != chunk for link in plan["links"]) or plan["bytes_between_nodes"] != 12 * chunk:
        yield f"links: {plan['links']}"
    if glob.glob("*parity*"):
        yield "a dry run wrote parity"


def a_killed_run_leaves_the_old_parity_or_none():
    folders = ranks(4, 8_000_000)
    for first in (True, False):
        for delay in (0.005, 0.02, 0.05, 0.1):
            with subprocess.Popen([CKPT, "protect", *folders, "--scheme", "rs", "-q"], stdin=subprocess.DEVNULL) as process:
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
            health = run("verify", "--parity", *folders)
            # Which of both it is depends on when it was killed; half of it is never taken for the whole.
            if health.returncode != 0 and not (first and health.returncode in (1, 4)):
                yield f"killed after {delay} s: {health.returncode} {health.stdout}{health.stderr}"
        run("protect", *folders)
    if len(glob.glob("*.ckpt-parity-*")) != 4:
        yield f"parity that nobody needs is left: {os.listdir('.')}"
    yield from problems(["verify", "--parity", *folders], 0, err="are whole")


main(every_scheme_brings_back_what_it_promises, a_lost_folder_comes_back_elsewhere, damage_is_noticed_and_who_can_repair_it_is_told,
     what_was_written_since_brings_nothing_back, a_file_more_hides_no_damage, what_is_not_of_the_protection_is_named,
     root_makes_for_a_user_only_what_he_could_have_made, a_parity_file_of_a_later_version_is_skipped,
     files_that_contradict_each_other_are_refused,
     what_cannot_be_is_refused, the_schedule_is_printed, a_killed_run_leaves_the_old_parity_or_none)
