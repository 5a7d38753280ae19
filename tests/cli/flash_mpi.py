#!/usr/bin/env python3
"""Partner copies over MPI: four ranks of two nodes, each with an agent of its own, under mpirun. A node is lost with its memory; the
ranks that are started again have every byte of the newest step.

    flash_mpi.py CKPT_BINARY
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

CKPT = os.path.abspath(sys.argv[1])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
os.environ["CKPT_BIN"] = CKPT
sys.path.insert(0, str(SOURCE / "plugins" / "torch"))
LOCAL, WORLD, ELEMENTS = 2, 4, 300_000


def skip(why):
    print(f"skipped: flash_mpi: {why}")
    sys.exit(77)


def state_of(rank, step):
    import numpy
    return {"w": numpy.arange(ELEMENTS + rank, dtype="f8") + 1000 * step + rank, "empty": numpy.zeros((0, 3)), "name": f"{rank}/{step}"}


def same(loaded, rank, step):
    wanted = state_of(rank, step)
    return loaded["w"].tobytes() == wanted["w"].tobytes() and loaded["name"] == wanted["name"] and loaded["empty"].shape == (0, 3)


def one_rank(base, nodes, last, levels):
    """Goes on from step `last`, which has to come from levels[node]; saves two steps."""
    from mpi4py import MPI
    import ckpt_flash.partner
    from ckpt_flash import Engine
    ckpt_flash.partner.CHUNK = 1 << 20  # several of them
    rank = MPI.COMM_WORLD.Get_rank()
    node = nodes[rank // LOCAL]
    numbers = []
    for _ in range(3):  # with one communicator of MPI's, of which there are not many
        engine = Engine(f"{base}/c", socket=f"{base}/{node}.sock", local_world=LOCAL, linger=60, partners=1, persist_on_death=False)
        numbers.append(engine._partner._channel.number)
        if len(numbers) < 3:
            engine.leave()
            engine.leave()
    assert numbers == [1, 1, 1], numbers
    assert (engine.rank, engine.world) == (rank, WORLD), (engine.rank, engine.world)
    try:
        Engine(f"{base}/c", rank=(rank + 1) % WORLD, local_world=LOCAL, start_agent=False, partners=1)
        raise AssertionError("another rank than MPI's was taken")
    except ValueError as error:
        assert f"rank {(rank + 1) % WORLD} is rank {rank} of the job's own group" in str(error), error
    loaded = engine.load(kind="numpy")
    assert (loaded.step if loaded else 0) == last, (rank, loaded and loaded.step)
    if last:
        assert loaded.level == levels[rank // LOCAL] and same(loaded, rank, last), (rank, loaded.level)
    for step in range(last + 1, last + 3):
        assert engine.save(step, state_of(rank, step))
    engine._settle()
    assert engine.protected_step == last + 2, (rank, engine.protected_step)
    MPI.COMM_WORLD.Barrier()
    engine.leave()


def one_fails(base, nodes):
    """Between two saves that all make: the others hear no more of it, and end with their saves skipped."""
    import time
    import warnings
    from mpi4py import MPI
    from ckpt_flash import Engine
    rank = MPI.COMM_WORLD.Get_rank()
    engine = Engine(f"{base}/f", socket=f"{base}/{nodes[rank // LOCAL]}f.sock", local_world=LOCAL, linger=60, partners=1, persist_on_death=False,
                    timeout=2)
    assert engine.save(1, state_of(rank, 1))
    engine._settle()
    if rank == 1:
        engine._partner._transfer = None
    assert engine.save(2, state_of(rank, 2))
    began = time.monotonic()
    engine._settle()
    assert time.monotonic() - began < 30 and engine.protected_step == 1, (rank, engine.protected_step)
    skipped = engine.save(3, state_of(rank, 3))
    assert not skipped and "the partner copies of step 2 are not complete" in skipped.skipped, (rank, skipped)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        engine.close()
    assert any("an exchange of partner copies has not ended" in str(one.message) for one in told) == (rank != 1), (rank, told)


def job(base, nodes, last, levels="--"):
    """`levels`: m memory, p a partner, of each node; f: a rank fails."""
    command = ["mpirun", "--oversubscribe", "--mca", "btl", "self,tcp", "--mca", "pml", "ob1", "-n", str(WORLD), sys.executable, __file__, CKPT, "rank",
               base, nodes, str(last), levels]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def lose(base, node, folder="c"):
    """Its agent, with all that it holds."""
    told = subprocess.run([CKPT, "agent", f"{base}/{folder}", "--socket", f"{base}/{node}.sock", "--status"], capture_output=True, text=True)
    if told.returncode == 0:
        os.kill(json.loads(told.stdout)["pid"], signal.SIGKILL)


def main():
    if not os.path.exists(LIBRARY):
        skip("libckpt-flash.so is not built here")
    if shutil.which("mpirun") is None:
        skip("no mpirun here (apt-get install openmpi-bin)")
    if subprocess.run([sys.executable, "-c", "import mpi4py.MPI, numpy"], capture_output=True).returncode != 0:
        skip("no mpi4py here (apt-get install python3-mpi4py)")
    base = tempfile.mkdtemp(prefix="ckpt-flash-mpi-")
    try:
        job(base, "ab", 0)
        lose(base, "b")
        job(base, "ac", 2, "mp")
        lose(base, "a")
        job(base, "cd", 4, "mp")  # and the launcher has numbered the nodes anew
        job(base, "ab", 0, "f")
        print("a lost node cost no step, twice")
    finally:
        for node in "abcd":
            lose(base, node)
        for node in "ab":
            lose(base, f"{node}f", "f")
        shutil.rmtree(base, ignore_errors=True)


if sys.argv[2:3] == ["rank"] and sys.argv[6] == "f":
    one_fails(sys.argv[3], sys.argv[4])
elif sys.argv[2:3] == ["rank"]:
    one_rank(sys.argv[3], sys.argv[4], int(sys.argv[5]), [{"m": "memory", "p": "partner"}.get(one) for one in sys.argv[6]])
else:
    main()
