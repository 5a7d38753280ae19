"""Flash checkpoints for DeepSpeed, ZeRO stages 0 to 3.

    engine, *_ = deepspeed.initialize(...)
    flash = Engine("checkpoints", save_storage_interval=100)
    ckpt_flash.deepspeed.restore(engine, flash)
    for ...:
        engine.step()
        ckpt_flash.deepspeed.save(engine, flash)

Every rank's part goes to its own agent; a restore wants the number of ranks that the save had. Mixtures of experts, pipelines
and offloading to NVMe have more state than this knows of, and are refused.
"""
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import distributed, serialization


def _refuse(engine):
    offloads = (engine.zero_offload_optimizer(), engine.zero_offload_param()) if engine.zero_optimization() else ()
    for what, is_so in (("a mixture of experts", engine.has_moe_layers),
                        ("a pipeline", type(engine).__name__ == "PipelineEngine"),
                        ("model parallelism", engine.mp_world_size > 1),
                        ("a frozen parameter with ZeRO 3", engine.zero_optimization_partition_weights()
                         and not all(parameter.requires_grad for parameter in engine.module.parameters())),
                        ("what lies on NVMe", any(getattr(one.device, "value", one.device) == "nvme" for one in offloads if one))):
        if is_so:
            raise NotImplementedError(f"ckpt_flash.deepspeed: {what} is not supported: use save_checkpoint")


def _part(engine):
    """What a rank's own part is called; what all ranks have alike is called the same everywhere."""
    return f"rank {distributed.get_rank()}" if engine.zero_optimization() or engine.bfloat16_enabled() else "all ranks"


def _optimizer_state(engine):
    """Stages as numbers: torch reads no pickled enumerator back without running code."""
    return {key: int(value) if isinstance(value, ZeroStageEnum) else value for key, value in engine.optimizer.state_dict().items()}


def state_of(engine):
    """What DeepSpeed's own save_checkpoint writes for this rank."""
    _refuse(engine)
    module = engine.module_state_dict()
    if engine.zero_optimization_partition_weights():  # parameters come back from the optimizer's parts
        buffers = {name for name, _ in engine.module.named_buffers()}
        module = {name: value for name, value in module.items() if name in buffers}
    return {"module": module,
            # By rank: in storage a name stands for one thing, and what several ranks have of it for copies.
            "optimizer": {_part(engine): _optimizer_state(engine)} if engine.optimizer is not None else {},
            "lr_scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None,
            "zero_stage": int(engine.zero_optimization_stage()), "dp_world_size": engine.dp_world_size,
            "global_steps": engine.global_steps, "global_samples": engine.global_samples, "skipped_steps": engine.skipped_steps}


def save(engine, flash, *, client_state=None, mode="copy"):
    """After each engine.step(): a Saved, or None where gradients are still being accumulated, or where the intervals of `flash`
    have it that this step is not saved.

    `client_state`: what else is to come back."""
    step = engine.global_steps
    # Not is_gradient_accumulation_boundary, which after a step speaks of the next micro-batch.
    if engine.micro_steps % engine.gradient_accumulation_steps() != 0 or not any(flash.wants(step)):
        return None
    return flash.save(step, {"deepspeed": state_of(engine), "client": client_state or {}}, mode=mode)


def restore(engine, flash, *, trust=False):
    """The newest step that every rank has, as the Loaded with what `client_state` was under "client"; None: there is none.

    `trust`: as for Engine.load; the classes of DeepSpeed's own optimizers come back without."""
    _refuse(engine)
    with serialization.safe_globals([LossScaler, DynamicLossScaler, fragment_address]):
        loaded = flash.load(trust=trust)
    if loaded is None:
        return None
    state = loaded["deepspeed"]
    for what, now in (("zero_stage", int(engine.zero_optimization_stage())), ("dp_world_size", engine.dp_world_size)):
        if state[what] != now:
            raise ValueError(f"ckpt_flash.deepspeed: step {loaded.step} was saved with {what} {state[what]}, and this is {now}")
    engine.load_module_state_dict(checkpoint={"module": state["module"]},
                                  strict=not engine.zero_optimization_partition_weights())
    if engine.optimizer is not None:
        own = state["optimizer"][_part(engine)]
        if hasattr(engine.optimizer, "dp_process_group"):
            parts = [None] * engine.dp_world_size  # its own is all that a rank reads
            parts[distributed.get_rank(group=engine.optimizer.dp_process_group)] = own
            engine.optimizer.load_state_dict(state_dict_list=parts, load_optimizer_states=True,
                                             load_from_fp32_weights=engine.zero_load_from_fp32_weights())
        else:
            engine.optimizer.load_state_dict(own)
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(state["lr_scheduler"])
    engine.global_steps, engine.global_samples = state["global_steps"], state["global_samples"]
    engine.skipped_steps = state["skipped_steps"]
    return loaded
