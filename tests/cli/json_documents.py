#!/usr/bin/env python3
"""What --json prints is what man/ckpt-json.schema.json says, no member more or less, and the manual page names each document."""
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jsonschema

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main, run
from small_checkpoints import floats, safetensors, zarr_array

MAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "man")
ELSEWHERE = {"suspend", "resume", "lock", "unlock", "timeslice"}  # they need a GPU
with open(os.path.join(MAN, "ckpt-json.schema.json"), encoding="utf-8") as stream:
    SCHEMA = json.load(stream)
DOCUMENTS = [entry["$ref"].rsplit("/", 1)[1] for entry in SCHEMA["anyOf"]]
NOT_UTF8 = os.fsdecode(b"n\xff.safetensors")
seen = set()


def strict(schema):
    """The same, with no members but those that are named."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and "required" in schema:
        out["additionalProperties"] = False
    return out


DEFINITIONS = strict(SCHEMA["$defs"])


def wrong(name, document):
    """Sentences on what is not as the schema says."""
    seen.add(name)
    checker = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS})
    for error in list(checker.iter_errors(document))[:5]:
        yield f"{name}: {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"


def printed(name, *arguments, code=0):
    """Checks the document on standard output, none where `name` is None, and the lines on standard error."""
    result = run(*arguments, "--json")
    if result.returncode != code:
        yield f"ckpt {' '.join(arguments)}: exit {result.returncode}: {result.stderr}"
    if name is not None and result.stdout != "":
        yield from wrong(name, json.loads(result.stdout))
    elif (name is None) != (result.stdout == ""):
        yield f"ckpt {' '.join(arguments)}: {result.stdout[:200]}"
    for line in result.stderr.splitlines():
        document = json.loads(line)
        kind = "error" if document["schema"] == "ckpt.error/1" else "note" if document["event"] == "note" else "progress"
        yield from wrong(kind, document)


def models():
    safetensors("a.safetensors", {"model.w": ("F32", [4, 2], floats(8)), "model.b": ("F32", [2], floats(2)),
                                  "optimizer.state.exp_avg.model.w": ("F32", [4, 2], floats(8))})
    safetensors("b.safetensors", {"model.w": ("F32", [4, 2], floats(8, 1.0)), "model.c": ("F32", [2], floats(2))})
    safetensors(NOT_UTF8, {"w": ("F32", [2], floats(2))})
    zarr_array("z/w", [4, 2], [2, 2], {"0.0": floats(4), "1.0": floats(4)})
    os.mkdir("empty")


def documents_of_models():
    models()
    yield from printed("inspect", "inspect", "a.safetensors")
    yield from printed("inspect", "inspect", "a.safetensors", "--stats")
    yield from printed("inspect", "inspect", NOT_UTF8)
    yield from printed("inspect-tree", "inspect", "a.safetensors", "--tree", "--depth", "1")
    yield from printed("inspect-files", "inspect", "z", "--files")
    yield from printed("inspect-groups", "inspect", "a.safetensors", "--group-by", "param")
    yield from printed("inspect-shards", "inspect", "z", "--shards", "w")
    yield from printed("inspect-diff", "inspect", "a.safetensors", "--diff", "b.safetensors", code=1)
    yield from printed("load-metadata", "load-metadata", "z")
    yield from printed("verify", "verify", "a.safetensors")
    yield from printed("verify", "verify", "a.safetensors", "--against", "b.safetensors", code=1)
    yield from printed("convert", "convert", "a.safetensors", "planned", "--to", "torch_dist", "--dry-run")
    yield from printed("convert", "convert", "a.safetensors", "written", "--to", "torch_dist")
    yield from printed("convert", "--progress", "jsonl", "convert", "z", "told", "--to", "safetensors")
    yield from printed("load-metadata", "load-metadata", "written")
    yield from printed("verify", "verify", "written")
    with open("layout.json", "w", encoding="ascii") as layout:
        json.dump({"world": {"tp": 2}, "tensors": {"**": [[0, "tp"]]}}, layout)
    yield from printed("load-metadata-plan", "load-metadata", "z", "--plan", "layout.json")
    yield from printed(None, "verify", "missing", code=4)
    yield from printed(None, "verify", "empty", code=6)
    yield from printed("list", "list", ".")
    yield from printed("list-gpu", "list", "--gpu")
    yield from printed("push", "push", "a.safetensors", "--store", "store")
    yield from printed("push", "push", "z", "--store", "store", "--name", "z1")
    yield from printed("pull", "pull", "z1", "--store", "store", "--dir", "pulled")
    yield from printed("list-store", "list", "--store", "store")
    yield from printed("rm-store", "rm", "--store", "store", "a.safetensors")
    yield from printed("gc", "gc", "--store", "store", "--dry-run")
    yield from printed("gc", "gc", "--store", "store")
    yield from printed("verify-store", "verify", "--store", "store")
    yield from printed("plan", "plan", "--mtbf", "3h", "--save-cost", "102s", "--step-time", "2s", "--sla", "0.5", "--max-overhead", "3%")
    yield from printed("plan", "plan", "--node-mtbf", "50d", "--mtbf", "3h", "--save-cost", ".", "--memory-save-cost", "9ms")
    yield from printed("plan", "plan", "--mtbf", "1ms", "--save-cost", "1h", code=1)
    for rank in ("r0", "r1", "r2"):
        os.mkdir(rank)
        shutil.copy("a.safetensors", rank)
    yield from printed("protect", "protect", "r0", "r1", "r2", "--scheme", "xor", "--dry-run")
    yield from printed("protect", "protect", "r0", "r1", "r2")
    yield from printed("verify-parity", "verify", "--parity", "r0", "r1", "r2")
    shutil.rmtree("r1")
    yield from printed("verify-parity", "verify", "--parity", "r0", "r1", "r2", code=1)
    yield from printed("rebuild", "rebuild", "r0", "r1", "r2", "--dry-run")
    yield from printed("rebuild", "rebuild", "r0", "r1", "r2")
    yield from printed("version", "--version")
    yield from printed("check", "check")


LIBRARY = os.path.join(os.path.dirname(CKPT), "libckpt-flash.so")


def documents_of_agents():
    if not os.path.exists(LIBRARY):
        print("skip  documents of agents: libckpt-flash.so is not built here")
        seen.update(("agent", "persist"))
        return
    os.environ["CKPT_FLASH_LIBRARY"], os.environ["CKPT_BIN"] = LIBRARY, CKPT
    sys.path.insert(0, os.path.join(MAN, "..", "plugins", "torch"))
    from ckpt_flash import Engine
    with Engine("flash", linger=20) as engine:
        yield from printed("agent", "agent", "flash", "--status")
        yield from printed(None, "persist", "flash", code=4)
        engine.save(1, {"w": bytearray(100), "step": 1})
        yield from printed("agent", "agent", "flash", "--status")
        yield from printed("persist", "persist", "flash", "--no-wait")
        yield from printed("persist", "persist", "flash")


def read_text(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


OF_PROCESSES = {"dump", "dump-dry-run", "pre-dump", "pre-dump-dry-run", "restore", "restore-copies", "restore-ended", "inspect-image", "inspect-image-stats",
                "load-metadata-image", "verify-image", "inspect-job", "verify-job", "list", "squash", "export", "import", "rm", "watch", "guard", "migrate"}


def documents_of_processes():
    if os.geteuid() != 0:
        print("skip  documents of processes: a restore wants root")
        seen.update(OF_PROCESSES)
        return
    null = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        try:
            pid = str(process.pid)
            while not read_text(f"/proc/{pid}/cmdline").startswith("sleep"):  # not yet executed
                time.sleep(0.001)
            yield from printed("check", "check", "-p", pid)
            yield from printed("pre-dump-dry-run", "pre-dump", "-p", pid, "-f", "before", "--dry-run")
            yield from printed("dump-dry-run", "dump", "-p", pid, "-f", "before", "--dry-run")
            yield from printed("pre-dump", "pre-dump", "-p", pid, "-f", "before")
            yield from watched(pid)
            yield from guarded()
            yield from printed("dump", "dump", "-p", pid, "-f", "image")
        finally:
            process.kill()
    yield from copied()
    yield from printed("inspect-image", "inspect", "image")
    yield from printed("inspect-image-stats", "inspect", "image", "--stats")
    yield from printed("load-metadata-image", "load-metadata", "image")
    yield from printed("verify-image", "verify", "image")
    yield from printed("verify-image", "verify", "image", "--rehearse")
    yield from printed("list", "list", ".")
    yield from printed("squash", "squash", "image", "whole", "--dry-run")
    yield from printed("squash", "squash", "image", "whole")
    yield from printed("export", "export", "whole", "-o", "whole.tar")
    yield from printed("import", "import", "whole.tar", "-f", "taken")
    yield from printed("restore", "restore", "-f", "whole", "--dry-run")
    yield from restored(pid)
    shutil.copytree("whole", "copy")
    with open("copy/pagemap", "r+b") as pagemap:
        pagemap.write(b"damage")
    yield from printed("verify-image", "verify", "copy", code=1)
    yield from of_a_job()
    yield from moved()
    yield from printed("rm", "rm", "before", "image", "--dry-run")
    yield from printed("rm", "rm", "--staging", ".")


def of_a_job():
    """Of which one part is on another host, and then one is damaged."""
    shutil.copytree("whole", "job/rank-0")
    job = {"id": "0" * 32, "rank": 0, "ranks": 2}
    with open("job/rank-0/manifest.json", encoding="ascii") as stream:
        manifest = re.sub(r'"job": \{[^}]*\}', f'"job": {json.dumps(job)}', stream.read(), count=1)
    with open("job/rank-0/manifest.json", "w", encoding="ascii") as stream:
        stream.write(manifest)
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    with open("job/rank-0/manifest.sha256", "w", encoding="ascii") as stream:
        stream.write(f"{digest}  manifest.json\n")
    part = {"boot_id": "", "folder": "/job", "image_id": json.loads(manifest)["id"], "manifest_sha256": digest, "bytes": 1, "pid": 1, "arguments": ["a"],
            "frozen_us": 1, "connections": 0, "variables": {"RANK": "0"}, "processes": [{"pid": 1, "variables": {}}]}
    hosts = [os.uname().nodename, "elsewhere"]
    with open("job/job.json", "w", encoding="ascii") as stream:
        json.dump({"schema": "ckpt.job/1", "id": job["id"], "created": "2026-01-01T00:00:00Z", "kind": "dump", "ranks": 2,
                   "parts": [{"rank": i, "part": f"rank-{i}", "host": host, **part} for i, host in enumerate(hosts)]}, stream)
    yield from printed("inspect-job", "inspect", "job", "--stats")
    with open("nodes", "w", encoding="ascii") as stream:
        stream.write("0 a r dp=0 tp=0\n1 b dp=1 tp=0\n")
    yield from printed("inspect-job", "inspect", "job", "--stats", "--topology", "nodes")
    yield from printed("verify-job", "verify", "job", code=3)
    yield from printed("list", "list", ".")
    os.unlink("job/rank-0/pagemap")
    yield from printed("verify-job", "verify", "job", code=1)
    yield from printed("rm", "rm", "job")
    if os.path.exists("job"):
        yield "rm leaves the job"


def moved():
    """To a receiver on this machine."""
    with open("ssh", "w", encoding="utf-8") as script:
        script.write('shift\nexec "$@"\n')
    null = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        while not read_text(f"/proc/{process.pid}/cmdline").startswith("sleep"):
            time.sleep(0.001)
        result = run("migrate", "-p", str(process.pid), "--to", "here", "--ssh", "sh ssh", "--remote-ckpt", CKPT, "--new-pidns", "--json")
        process.kill()
    if result.returncode != 0:
        yield f"migrate: exit {result.returncode}: {result.stderr}"
        return
    report = json.loads(result.stdout)
    os.kill(report["pid_outside_there"], signal.SIGKILL)
    yield from wrong("migrate", report)


def watched(pid):
    """One line for each event."""
    with open("events", "w+", encoding="utf-8") as out:
        with subprocess.Popen([CKPT, "watch", "-p", pid, "-f", "watched", "--plan", "1s", "--keep-last", "1", "--full-every", "1", "--json"],
                              stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL) as watch:
            wanted = {"watching", "saved", "planned", "removed"}
            for _ in range(3000):
                out.seek(0)
                if wanted <= {json.loads(line)["event"] for line in out.read().splitlines(True) if line.endswith("\n")}:
                    break
                time.sleep(0.01)
            watch.terminate()
            watch.wait(30)
        out.seek(0)
        lines = [json.loads(line) for line in out.read().splitlines()]
    if missing := (wanted | {"stopped"}) - {line["event"] for line in lines}:
        yield f"watch: no {missing}"
    for line in lines:
        yield from wrong("watch", line)


def guarded():
    lines = []
    for _ in range(2):
        with open("events", "w+", encoding="utf-8") as out:
            with subprocess.Popen([CKPT, "guard", "-f", "guarded", "--every", "10ms", "--keep-last", "1", "--full-every", "1", "--json",
                                   "--", "/bin/sh", "-c", "exec sleep 1000 >/dev/null 2>&1"], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL) as guard:
                for _ in range(3000):
                    out.seek(0)
                    if "removed" in out.read():
                        break
                    time.sleep(0.01)
                guard.terminate()
                guard.wait(30)
            out.seek(0)
            lines += [json.loads(line) for line in out.read().splitlines()]
    if missing := {"started", "restored", "saved", "removed", "notice", "checkpointed", "ended"} - {line["event"] for line in lines}:
        yield f"guard: no {missing}"
    for line in lines:
        yield from wrong("guard", line)


def restored(pid):
    """In the foreground: a line when it runs, one when it has ended."""
    with open("out", "w+", encoding="utf-8") as out, open("err", "w+", encoding="utf-8") as err:
        with subprocess.Popen([CKPT, "restore", "-f", "whole", "--json"], stdin=subprocess.DEVNULL, stdout=out, stderr=err) as front:
            for _ in range(1000):
                out.seek(0)
                if out.read().count("\n") == 1:
                    break
                time.sleep(0.01)
            os.kill(int(pid), signal.SIGTERM)
            front.wait(30)
        out.seek(0)
        lines = out.read().splitlines()
        if len(lines) != 2:
            yield f"restore: {lines}"
            return
        yield from wrong("restore", json.loads(lines[0]))
        yield from wrong("restore-ended", json.loads(lines[1]))


def copied():
    """In the foreground: a line when all run, one for each that has ended."""
    with subprocess.Popen([CKPT, "restore", "-f", "image", "--new-pidns", "--copies", "2", "--json"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True) as front:
        line = front.stdout.readline()
        if not line:
            yield "restore --copies: no document"
            return
        yield from wrong("restore-copies", json.loads(line))
        for copy in json.loads(line)["copies"]:
            os.kill(copy["pid_outside"], signal.SIGTERM)
        for _ in range(2):
            yield from wrong("restore-ended", json.loads(front.stdout.readline()))


def every_document_was_seen_and_is_in_the_manual():
    for name in set(DOCUMENTS) - seen - ELSEWHERE:
        yield f"no test printed {name}"
    with open(os.path.join(MAN, "ckpt-json.5"), encoding="ascii") as page:
        listed = re.findall(r"^\.It Cm (.*)", page.read(), re.M)
    named = {word for line in listed for word in line.replace(",", " ").split()}
    for name in set(DOCUMENTS) ^ named:
        yield f"ckpt-json(5) and the schema disagree on {name}"


main(documents_of_models, documents_of_agents, documents_of_processes, every_document_was_seen_and_is_in_the_manual)
