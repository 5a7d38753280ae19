#!/usr/bin/env python3
"""A training loop that saves every step to the node's agent, and goes on from there when it is started again.

usage: flash_train.py FOLDER STEPS [--die STEP]     With --die the process is killed (-9) in the middle of that step's save.
"""
import hashlib
import os
import pathlib
import signal
import sys
import threading

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "plugins" / "torch"))
from ckpt_flash import Engine  # noqa: E402

folder, steps = sys.argv[1], int(sys.argv[2])
die = int(sys.argv[sys.argv.index("--die") + 1]) if "--die" in sys.argv else None
engine = Engine(folder, save_storage_interval=20, linger=30)
state = engine.load(kind="numpy")
if state is None:
    state = {"weights": numpy.zeros((2000, 1000), "f4"), "momentum": numpy.zeros((2000, 1000), "f4"), "step": 0}
    print("begins anew", flush=True)
else:
    print(f"goes on after step {state.step}, from {state.level}: {state.bytes / 2**20:.0f} MiB in {state.total_us / 1000:.1f} ms", flush=True)
for step in range(state["step"] + 1, steps + 1):
    gradient = numpy.random.default_rng(step).standard_normal(state["weights"].shape, "f4")
    state["momentum"] = state["momentum"] * numpy.float32(0.9) + gradient
    state["weights"] = state["weights"] - numpy.float32(0.01) * state["momentum"]
    state["step"] = step
    if step == die:
        threading.Timer(0.001, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        while True:
            engine.save(step, dict(state))
    engine.save(step, dict(state))
print("sha256", hashlib.sha256(state["weights"].tobytes()).hexdigest())
engine.close()
