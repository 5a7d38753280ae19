"""Flash checkpoints for Lightning: `Trainer(callbacks=[FlashCheckpoint("checkpoints")])`, and nothing else.

A training that begins anew in the same folder goes on from the newest step that every rank has: from memory, else from
storage. Give Trainer.fit no ckpt_path then. Every rank saves its own state, so this is for strategies whose ranks each hold
the whole of it (one device, DDP); those that shard the model (FSDP, DeepSpeed) are refused: ckpt_flash.FlashWriter and
ckpt_flash.deepspeed are for them.
"""
from lightning.pytorch.callbacks import Callback

from .engine import Engine


class FlashCheckpoint(Callback):
    """Saves to memory every so many optimizer steps, to storage every so many more.

    every_n_train_steps    optimizer steps between saves to memory
    save_storage_interval  between those that go to storage, too; 0: only when a trainer or the agent ends
    mode                   of Engine.save: copy or snapshot
    trust                  of Engine.load: whether objects from storage may be of any class, whose code runs
    options                of Engine: max_to_keep, if_busy, partners, ...
    """

    def __init__(self, checkpoint_dir, every_n_train_steps=1, save_storage_interval=0, *, mode="copy", trust=False, **options):
        self.checkpoint_dir, self.mode, self._trust = checkpoint_dir, mode, trust
        self._options = dict(options, save_mem_interval=every_n_train_steps, save_storage_interval=save_storage_interval)
        self._saved_step = None
        #: The Engine, from the beginning of a fit to its end.
        self.engine = None
        #: The Loaded that this fit goes on from; None: it began anew.
        self.resumed = None

    def setup(self, trainer, pl_module, stage):
        if stage != "fit":
            return
        if trainer.strategy.restore_checkpoint_after_setup:
            raise RuntimeError(f"FlashCheckpoint: {type(trainer.strategy).__name__} shards the model: see ckpt_flash.FlashWriter "
                               "and ckpt_flash.deepspeed")
        ranks = {"rank": trainer.global_rank, "world": trainer.world_size, "local_world": trainer.num_devices}
        self.engine = Engine(self.checkpoint_dir, **{**ranks, **self._options})
        self._saved_step = None
        if trainer.ckpt_path:  # what the user names is what counts
            return
        self.resumed = self.engine.load(trust=self._trust)
        if self.resumed is not None:
            self._saved_step = self.resumed.step
            # Lightning restores what is there, in its own order, as if it had read a file.
            trainer._checkpoint_connector._loaded_checkpoint = dict(self.resumed)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        step = trainer.global_step
        if step == self._saved_step or not any(self.engine.wants(step)):  # the same: gradients are accumulated
            return
        if self.engine.save(step, trainer._checkpoint_connector.dump_checkpoint(weights_only=False), mode=self.mode):
            self._saved_step = step

    def teardown(self, trainer, pl_module, stage):
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def on_exception(self, trainer, pl_module, exception):
        if self.engine is not None:
            self.engine.leave()  # the agent keeps its memory for the training that begins anew
            self.engine = None
