"""Hugging Face Transformers: Trainer, pipeline and from_pretrained find the device. Models have random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torch_webgpu.integrations import known

pytest.importorskip("transformers", reason="about Hugging Face Transformers, which is not installed")
pytest.importorskip("accelerate", reason="Transformers trains with Hugging Face Accelerate, which is not installed")

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import modeling_utils, pipelines
from transformers.utils import import_utils

WORDS = ["[PAD]", "[UNK]", "the", "cat", "sat", "on", "a", "mat"]


def plain(module: str, target: str) -> Any:
    """What Transformers has without the patch."""
    [patch] = [p for p in known.patches(f"transformers.{module}") if p.target == target]
    return patch.plain


def causal_model(dropout: float = 0.0, layers: int = 1) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=16, n_layer=layers, n_head=2,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sixteen of eight tokens."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(8) * (index + 3) + index) % len(WORDS)
        return {"input_ids": ids, "labels": ids}


class Seen(transformers.TrainerCallback):  # type: ignore[misc]
    """Losses by step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        if "loss" in logs:
            self.losses[state.global_step] = logs["loss"]


def trainer(folder: Path, dropout: float = 0.0, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=4, logging_steps=1, report_to=[], disable_tqdm=True,
        save_strategy=options.pop("save_strategy", "no"), learning_rate=1e-2, **options,
    )  # fmt: skip
    found = transformers.Trainer(causal_model(dropout), arguments, train_dataset=Texts())
    found.seen = Seen()
    found.add_callback(found.seen)
    return found


def test_training_arguments_find_the_device(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path))
    assert (arguments.device, arguments.n_gpu) == (torch.device("webgpu", 0), 1)
    assert arguments.parallel_mode.name == "NOT_PARALLEL"


def test_an_explicit_choice_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert transformers.TrainingArguments(str(tmp_path), use_cpu=True).device.type == "cpu"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert transformers.TrainingArguments(str(tmp_path)).device.type == "cpu"


@pytest.mark.parametrize("optimizer", ["adamw_torch_fused", "adamw_torch"])
def test_training_equals_the_cpu(optimizer: str, tmp_path: Path) -> None:
    ours = trainer(tmp_path, optim=optimizer)
    done = ours.train()
    assert {p.device.type for p in ours.model.parameters()} == {"webgpu"}
    fused = True if optimizer == "adamw_torch_fused" else None
    assert {group["fused"] for group in ours.optimizer.param_groups} == {fused}
    cpu = trainer(tmp_path, optim=optimizer, use_cpu=True)
    torch.testing.assert_close(done.training_loss, cpu.train().training_loss, rtol=1e-3, atol=1e-4)
    assert {p.device.type for p in cpu.model.parameters()} == {"cpu"}


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_mixed_precision_casts(precision: str, dtype: torch.dtype, tmp_path: Path) -> None:
    ours, seen = trainer(tmp_path, **{precision: True}), []
    head = ours.model.lm_head
    head.register_forward_hook(lambda module, inputs, output: seen.append((output.device.type, output.dtype)))
    done = ours.train()
    assert set(seen) == {("webgpu", dtype)}
    assert head.weight.dtype == torch.float32
    assert (ours.accelerator.scaler is not None) == (precision == "fp16")
    full = trainer(tmp_path, use_cpu=True).train()
    torch.testing.assert_close(done.training_loss, full.training_loss, rtol=5e-2, atol=5e-2)


def test_a_checkpoint_resumes_with_its_random_state(tmp_path: Path) -> None:
    options = {"dropout": 0.5, "save_strategy": "steps", "save_steps": 2}
    whole = trainer(tmp_path, **options)
    whole.train()
    again = trainer(tmp_path, **options)
    torch.rand(3, device="webgpu")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert {3, 4} <= again.seen.losses.keys()
    assert [again.seen.losses[i] for i in (3, 4)] == [whole.seen.losses[i] for i in (3, 4)]


def test_a_pipeline_finds_the_device() -> None:
    for device, expected in ((None, "webgpu"), (0, "webgpu"), ("webgpu", "webgpu"), (-1, "cpu"), ("cpu", "cpu")):
        options = {} if device is None else {"device": device}
        made = transformers.pipeline("text-generation", model=causal_model(), tokenizer=tokenizer(), **options)
        assert (made.device.type, made.model.device.type) == (expected, expected)
    text = transformers.pipeline("text-generation", model=causal_model(), tokenizer=tokenizer())
    on_the_cpu = transformers.pipeline("text-generation", model=causal_model(), tokenizer=tokenizer(), device="cpu")
    asked = {"max_new_tokens": 4, "do_sample": False}
    assert text("the cat", **asked) == on_the_cpu("the cat", **asked)


@pytest.mark.parametrize("device_map", ["auto", 0, "webgpu"])
def test_device_map(device_map: Any, tmp_path: Path) -> None:
    model = causal_model()
    model.save_pretrained(tmp_path)
    placed = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map=device_map)
    assert {p.device.type for p in placed.parameters()} == {"webgpu"}
    ids = torch.tensor([[2, 3, 4]])
    want = model.eval()(ids).logits
    torch.testing.assert_close(placed(ids.to("webgpu")).logits.cpu(), want, rtol=1e-4, atol=1e-5)
    made = transformers.pipeline("text-generation", model=placed, tokenizer=tokenizer())
    assert made.device.type == "webgpu"
    assert made("the cat", max_new_tokens=2)[0]["generated_text"].startswith("the cat")


def test_device_map_with_a_part_on_the_cpu(tmp_path: Path) -> None:
    model = causal_model(layers=3)
    model.save_pretrained(tmp_path)
    room = {0: "35KB", "cpu": "1GB"}
    placed = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map="auto", max_memory=room)
    assert set(placed.hf_device_map.values()) == {0, "cpu"}
    ids = torch.tensor([[2, 3, 4]])
    torch.testing.assert_close(placed(ids).logits.cpu(), model.eval()(ids).logits, rtol=1e-4, atol=1e-5)


def test_loading_does_not_begin_with_one_tensor_of_the_models_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_as_large(*args: Any) -> dict[torch.device, int]:
        return dict.fromkeys({*args[1].values()}, 1 << 50)

    monkeypatch.setattr(modeling_utils, "get_total_byte_count", none_as_large)
    names = [name for name, _ in causal_model().named_parameters()]
    modeling_utils.caching_allocator_warmup(causal_model(), dict.fromkeys(names, 0), None)
    with pytest.raises(torch.OutOfMemoryError):  # the canary
        plain("modeling_utils", "caching_allocator_warmup")(causal_model(), dict.fromkeys(names, 0), None)


# Canaries: when one of these fails, Transformers does by itself what the patch is for, and the patch can go. ----------


def test_training_arguments_still_need_it(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path))
    assert plain("training_args", "TrainingArguments._setup_devices").func(arguments).type == "cpu"


def test_bfloat16_still_needs_it() -> None:
    assert import_utils.is_torch_bf16_gpu_available()
    assert not plain("utils.import_utils", "is_torch_bf16_gpu_available")()


def test_pipelines_still_need_it() -> None:
    made = pipelines.TextGenerationPipeline.__new__(pipelines.TextGenerationPipeline)
    plain("pipelines.base", "Pipeline.__init__")(made, causal_model(), tokenizer=tokenizer(), task="text-generation")
    assert made.device.type == "cpu"


def test_compiled_decoding_still_needs_it() -> None:
    model = causal_model().to("webgpu")
    cache = transformers.StaticCache(model.config, max_cache_len=8)
    given = {"past_key_values": cache}, model.generation_config
    assert model._valid_auto_compile_criteria(*given)
    assert not plain("generation.utils", "GenerationMixin._valid_auto_compile_criteria")(model, *given)
    assert not model._valid_auto_compile_criteria({"past_key_values": transformers.DynamicCache()}, given[1])
    assert not model.cpu()._valid_auto_compile_criteria(*given)


def test_random_states_still_need_it(tmp_path: Path) -> None:
    ours = trainer(tmp_path)
    plain("trainer", "Trainer._save_rng_state")(ours, str(tmp_path))
    before = torch.webgpu.get_rng_state()
    torch.rand(3, device="webgpu")
    plain("trainer", "Trainer._load_rng_state")(ours, str(tmp_path))
    assert not torch.equal(torch.webgpu.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    """Models whose attention it is: padding, a soft cap, windows, lengths that change, training and generation."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, sliding_window=16, vocab_size=50, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).to("webgpu").eval()
    ids = torch.randint(1, 50, (2, 40), device="webgpu")
    ids[1, :9] = 0
    mask = (ids > 0).long()
    labels = ids.masked_fill(mask.cumsum(1) <= 1 - mask[:, :1], -100)  # nobody asks what follows padding
    outcomes: list[tuple[torch.Tensor, ...]] = []
    before = torch.webgpu.compile_stats().patterns.get("FlexAttention", 0)
    for attention in ("eager", "flex_attention"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        out = model(ids, attention_mask=mask, labels=labels)
        out.loss.backward()
        tokens = model.generate(ids[:, :20], attention_mask=mask[:, :20], max_new_tokens=5, do_sample=False)
        gradient = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
        outcomes.append((out.logits.detach()[mask.bool()], gradient, tokens))
    assert torch.webgpu.compile_stats().patterns["FlexAttention"] > before
    for eager, flex in zip(*outcomes, strict=True):
        torch.testing.assert_close(flex.cpu(), eager.cpu(), rtol=1e-4, atol=1e-5)
