"""Flash checkpoints: a save is a copy into the memory of the node's agent, which outlives the trainer and writes to storage.

    from ckpt_flash import Engine
    engine = Engine("checkpoints", save_storage_interval=100)
    state = engine.load() or fresh_state()
    for step in ...:
        train(state)
        engine.save(step, state)

torch is used where it is there; without it numpy arrays and whatever else has the buffer protocol are saved the same way.
"""
from ._library import Busy, FlashError, NotFound
from .engine import Engine, Loaded, Saved

__all__ = ["Busy", "Engine", "FlashError", "Loaded", "NotFound", "Saved"]


def __getattr__(name):
    """FlashWriter and FlashReader need torch: it is imported when they are asked for."""
    if name in ("FlashWriter", "FlashReader"):
        from . import distributed
        return getattr(distributed, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
