#!/usr/bin/env python3
"""Lightning and DeepSpeed with flash checkpoints: a training killed in the middle and begun again ends with the losses of one
that was not, to the bit; from the agent's memory, and from what the agent wrote when it was told to end."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = os.path.abspath(__file__)
SOURCE = os.path.join(os.path.dirname(SCRIPT), "..", "..")
RANKS, STEPS, KILLED_AT, ACCUMULATED = 2, 12, 7, 2


class Failure(Exception):
    pass


# --- the trainings ---


def sample(step, rank):
    import torch
    torch.manual_seed(1000 + RANKS * step + rank)
    return torch.randn(4, 64)


def network(norm="BatchNorm1d"):
    import torch
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), getattr(torch.nn, norm)(128), torch.nn.ReLU(), torch.nn.Linear(128, 1))


def report(rank, step, loss):
    with open(f"losses.{rank}", "a", encoding="ascii") as losses:
        losses.write(f"{step} {loss.item().hex()}\n")


def die_at(step, wanted):
    if step == wanted:
        os.kill(os.getpid(), signal.SIGKILL)


def train_lightning(killed_at, devices):
    import lightning.pytorch as lightning
    import torch
    from ckpt_flash.lightning import FlashCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            step = self.global_step
            die_at(step, killed_at)
            loss = self.net(sample(step, self.global_rank)).square().mean()
            report(self.global_rank, step, loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    flash = FlashCheckpoint("checkpoints", linger=60)
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(accelerator="cpu", devices=devices, max_steps=STEPS, max_epochs=-1, callbacks=[flash], logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                **({"strategy": "ddp"} if devices > 1 else {}))
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.zeros(8 * devices, 1), batch_size=2))
    print("resumed", flash.resumed and (flash.resumed.step, flash.resumed.level), flush=True)


def train_deepspeed(killed_at, stage, bfloat16):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch
    from ckpt_flash import Engine
    from ckpt_flash import deepspeed as hook

    rank = int(os.environ["RANK"])
    deepspeed.init_distributed("gloo", verbose=False)
    model = network("LayerNorm" if bfloat16 else "BatchNorm1d")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
        config={"train_batch_size": 4 * RANKS * ACCUMULATED, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True, "bf16": {"enabled": bfloat16}})
    with Engine("checkpoints", linger=60) as flash:
        resumed = hook.restore(engine, flash)
        print("resumed", resumed and (resumed.step, resumed.level), flush=True)
        while engine.global_steps < STEPS:
            step = engine.global_steps
            die_at(step, killed_at)
            for part in range(ACCUMULATED):
                batch = sample(ACCUMULATED * step + part, rank)
                loss = engine(batch.bfloat16() if bfloat16 else batch).square().mean()
                engine.backward(loss)
                engine.step()
                saved = hook.save(engine, flash)
                if bool(saved) != (part == ACCUMULATED - 1):
                    raise RuntimeError(f"step {step}, micro-batch {part}: {saved}")
            report(rank, step, loss)


def train(what, killed_at):
    sys.path.insert(0, os.path.join(SOURCE, "plugins", "torch"))
    if what.startswith("lightning"):
        train_lightning(killed_at, RANKS if what.endswith("ddp") else 1)
    else:
        train_deepspeed(killed_at, int(what.split("-")[1]), what.endswith("bf16"))


# --- the test ---


def environment():
    script = os.path.join(SOURCE, "tests", "interop", "make_env.sh")
    made = subprocess.run([script, "trainers"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        print(f"skipped: trainers: no environment with lightning and deepspeed: {made.stderr.strip()[-300:]}")
        sys.exit(77)
    return made.stdout.strip()


def run(python, folder, what, killed_at=-1):
    """Its output. In DeepSpeed's world and Lightning's of several ranks others end the ranks that are left."""
    binaries = os.path.dirname(os.path.abspath(os.environ["CKPT_BIN"]))
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PATH": os.path.dirname(python) + ":" + os.environ["PATH"],
                "CKPT_FLASH_LIBRARY": os.path.join(binaries, "libckpt-flash.so")}
    launcher = [] if what.startswith("lightning") else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    with open(os.path.join(folder, "output"), "w+", encoding="utf-8", errors="replace") as output:
        popen = subprocess.Popen([python, *launcher, SCRIPT, "train", what, str(killed_at)], cwd=folder, env=settings, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=output, start_new_session=True)
        try:
            code = popen.wait(300)
        finally:
            try:
                os.killpg(popen.pid, signal.SIGKILL)  # Lightning's other ranks, whose first one has been killed
            except ProcessLookupError:
                pass
        output.seek(0)
        said = output.read()
    if (code == 0) != (killed_at < 0):
        raise Failure(f"{what} ended with {code}:\n{said[:6000]}")
    return said


def losses(folder):
    """By rank, in the order of the steps; one that was made twice was the same twice."""
    out = {}
    for name in sorted(name for name in os.listdir(folder) if name.startswith("losses.")):
        with open(os.path.join(folder, name), encoding="ascii") as lines:
            pairs = sorted({(int(line.split()[0]), line.split()[1]) for line in lines})
        if [step for step, _ in pairs] != list(range(STEPS)):
            raise Failure(f"{name}: the steps are {[step for step, _ in pairs]}")
        out[name] = pairs
    return out


def end_agent(folder):
    """As the node's end would: it writes what it has."""
    ckpt = os.environ["CKPT_BIN"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                words = stream.read().split(b"\0")
        except OSError:
            continue
        if len(words) > 2 and words[1] == b"agent" and os.path.basename(words[0].decode()) == os.path.basename(ckpt) \
                and words[2].decode().startswith(folder):
            os.kill(int(pid), signal.SIGTERM)
            for _ in range(600):
                if not os.path.exists(f"/proc/{pid}"):
                    return
                time.sleep(0.1)
    raise Failure("the agent does not end")


def goes_on(python, place, what, level):
    straight, killed = (os.path.join(place, f"{what}-{level}-{name}") for name in ("straight", "killed"))
    os.mkdir(straight), os.mkdir(killed)
    run(python, straight, what)
    run(python, killed, what, KILLED_AT)
    if level == "storage":
        end_agent(killed)
    said = run(python, killed, what)
    if f"resumed ({KILLED_AT}, '{level}')" not in said:
        raise Failure(f"{what}: not from step {KILLED_AT} in {level}:\n{said[-6000:]}")
    wanted, found = losses(straight), losses(killed)
    if wanted != found:
        raise Failure(f"{what} from {level}: {wanted} became {found}")
    print(f"{what}: {len(wanted)} ranks, {STEPS} steps, killed at {KILLED_AT}, resumed from {level}: the same losses to the bit", flush=True)


def main():
    if os.environ.get("CKPT_APPS") != "1":
        print("skipped: trainers: wants CKPT_APPS=1")
        return 77
    python = environment()
    place = tempfile.mkdtemp(prefix="ckpt-trainers-")
    failures = 0
    try:
        for what in sys.argv[1:] or ("lightning", "lightning-ddp", *(f"deepspeed-{stage}" for stage in range(4)), "deepspeed-1-bf16", "deepspeed-3-bf16"):
            for level in ("memory", "storage"):
                try:
                    goes_on(python, place, what, level)
                except Failure as failure:
                    print(f"FAIL {what} from {level}: {failure}", file=sys.stderr)
                    failures += 1
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], int(sys.argv[3]))
        os._exit(0)  # torch's own end aborts now and then, with threads of gloo that nobody has joined
    sys.exit(main())
