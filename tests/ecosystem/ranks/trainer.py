"""Transformers' Trainer under torchrun: ``trainer.py FOLDER cpu|ddp|fsdp1|fsdp2``. Rank 0 prints what it saw."""

import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

folder, mode = sys.argv[1:]
options = {"use_cpu": True} if mode == "cpu" else {}
if mode.startswith("fsdp"):
    settings = {"transformer_layer_cls_to_wrap": "GPT2Block", "version": int(mode[-1])}
    options = {"fsdp": True, "fsdp_config": settings}
config = GPT2Config(
    vocab_size=16, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
)  # fmt: skip
generator = torch.Generator().manual_seed(1)
texts = [{"input_ids": t, "labels": t} for t in torch.randint(16, (32, 8), generator=generator)]
arguments = TrainingArguments(
    folder, max_steps=6, save_steps=3, logging_steps=1, per_device_train_batch_size=4, report_to=[],
    learning_rate=1e-2, disable_tqdm=True, optim="adamw_torch", **options,
)  # fmt: skip


def trained(**resume: str) -> tuple[Trainer, list[float]]:
    torch.manual_seed(0)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=texts)
    trainer.train(**resume)
    return trainer, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


trainer, losses = trained()
evaluated = trainer.evaluate(texts[:8])["eval_loss"]
_, resumed = trained(resume_from_checkpoint=f"{folder}/checkpoint-3")
if arguments.process_index == 0:
    result = {
        "device": arguments.device.type,
        "ranks": arguments.world_size,
        "model": type(trainer.model_wrapped).__name__,
        "losses": losses,
        "evaluated": evaluated,
        "resumed": resumed,
    }
    print(json.dumps(result))
