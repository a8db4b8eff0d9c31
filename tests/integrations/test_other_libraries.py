"""sentence-transformers, Stable-Baselines3 and Diffusers find the device. Models have random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_webgpu.integrations import known


def plain(module: str, target: str) -> Any:
    """What the library has without the patch."""
    [patch] = [p for p in known.patches(module) if p.target == target]
    return patch.plain


# sentence-transformers ------------------------------------------------------------------------------------------------


@pytest.fixture
def sentence_modules(tmp_path: Path) -> list[Any]:
    pytest.importorskip("sentence_transformers", reason="about sentence-transformers, which is not installed")
    import transformers
    from sentence_transformers import models
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as words

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "a", "dog", "ran"]
    plain_tokenizer = Tokenizer(words.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    plain_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain_tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    ).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path)
    body = models.Transformer(str(tmp_path))
    return [body, models.Pooling(16)]


def test_sentence_transformers_find_the_device(sentence_modules: list[Any]) -> None:
    from sentence_transformers import SentenceTransformer, util
    from sentence_transformers.util import environment

    sentences = ["the cat sat", "a dog ran", "the dog"]
    cpu = SentenceTransformer(modules=sentence_modules, device="cpu")
    assert cpu.device.type == "cpu"
    want = cpu.encode(sentences, convert_to_tensor=True)
    found = SentenceTransformer(modules=sentence_modules)
    assert {p.device.type for p in found.parameters()} == {"webgpu"}
    got = found.encode(sentences, convert_to_tensor=True)
    assert got.device.type == "webgpu"
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(util.cos_sim(got, got).cpu(), util.cos_sim(want, want), rtol=1e-4, atol=1e-4)
    assert environment.get_device_name() == util.get_device_name() == "webgpu:0"
    assert plain("sentence_transformers.util.environment", "get_device_name")() == "cpu"  # the canary


# PEFT -----------------------------------------------------------------------------------------------------------------


def test_peft_reads_adapters_to_the_device(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="about PEFT, which is not installed")
    from peft.utils import other
    from peft.utils.save_and_load import load_peft_weights
    from tests.integrations.training import net

    def adapted() -> Any:
        return peft.get_peft_model(net().to("webgpu"), peft.LoraConfig(r=2, target_modules=["first"]))

    assert other.infer_device() == "webgpu"
    assert plain("peft.utils.other", "infer_device")() == "cpu"  # the canary
    model, x = adapted(), torch.ones(2, 8, device="webgpu")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora" in name:
                p.fill_(0.5)
    model.save_pretrained(tmp_path)
    assert {t.device.type for t in load_peft_weights(str(tmp_path)).values()} == {"webgpu"}
    again = peft.PeftModel.from_pretrained(net().to("webgpu"), tmp_path)
    assert {p.device.type for p in again.parameters()} == {"webgpu"}
    torch.testing.assert_close(again(x), model(x))
    on_the_cpu = peft.PeftModel.from_pretrained(net(), tmp_path, torch_device="cpu")
    torch.testing.assert_close(on_the_cpu(x.cpu()), model(x).cpu(), rtol=1e-5, atol=1e-5)


# Stable-Baselines3 ----------------------------------------------------------------------------------------------------


def test_stable_baselines3_finds_the_device(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason="about Stable-Baselines3, which is not installed")
    import gymnasium
    import numpy as np
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common import utils

    class Walk(gymnasium.Env):  # type: ignore[misc, type-arg]
        """To the right it is good."""

        observation_space = gymnasium.spaces.Box(-1, 1, (3,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            self.steps = 0
            return np.zeros(3, np.float32), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            observed = np.full(3, self.steps / 10, np.float32)
            return observed, float(action), self.steps == 10, False, {}

    assert utils.get_device() == utils.get_device("auto") == torch.device("webgpu", 0)
    assert utils.get_device("cpu") == utils.get_device(torch.device("cpu")) == torch.device("cpu")
    assert plain("stable_baselines3.common.utils", "get_device")() == torch.device("cpu")  # the canary

    options = {"n_steps": 16, "batch_size": 8, "n_epochs": 1, "seed": 0, "policy_kwargs": {"net_arch": [8]}}
    found = PPO("MlpPolicy", Walk(), **options)
    cpu = PPO("MlpPolicy", Walk(), device="cpu", **options)
    assert {p.device.type for p in found.policy.parameters()} == {"webgpu"}
    assert {p.device.type for p in cpu.policy.parameters()} == {"cpu"}
    found.policy.load_state_dict(cpu.policy.state_dict())
    observed = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    values = [model.policy.predict_values(model.policy.obs_to_tensor(observed)[0]) for model in (found, cpu)]
    torch.testing.assert_close(values[0].cpu(), values[1], rtol=1e-4, atol=1e-5)

    found.learn(16)
    found.save(tmp_path / "agent.zip")
    again = PPO.load(tmp_path / "agent.zip")
    assert again.device.type == "webgpu"
    actions = [model.predict(observed, deterministic=True)[0].tolist() for model in (again, found)]
    assert actions[0] == actions[1]
    buffered = DQN("MlpPolicy", Walk(), buffer_size=32, policy_kwargs={"net_arch": [8]})
    assert buffered.replay_buffer.device.type == "webgpu"


# Diffusers ------------------------------------------------------------------------------------------------------------


def diffusion_pipeline() -> Any:
    import diffusers

    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler(num_train_timesteps=10))


def test_diffusers_find_the_device() -> None:
    pytest.importorskip("diffusers", reason="about Diffusers, which is not installed")
    from diffusers.utils import torch_utils

    assert torch_utils.get_device() == "webgpu"
    made = diffusion_pipeline()
    made.set_progress_bar_config(disable=True)
    asked = {"num_inference_steps": 2, "output_type": "np"}
    want = made(generator=torch.Generator().manual_seed(1), **asked).images
    made.to(torch_utils.get_device())
    assert made.unet.device.type == "webgpu"
    got = made(generator=torch.Generator().manual_seed(1), **asked).images
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-3, atol=1e-4)
    assert made(generator=torch.Generator("webgpu").manual_seed(1), **asked).images.shape == want.shape


def test_diffusers_offload_to_the_device() -> None:
    pytest.importorskip("diffusers", reason="about Diffusers, which is not installed")
    pytest.importorskip("accelerate", reason="Diffusers offloads with Accelerate, which is not installed")
    made = diffusion_pipeline()
    made.set_progress_bar_config(disable=True)
    made.enable_model_cpu_offload()
    seen = []
    made.unet.conv_in.register_forward_hook(lambda module, inputs, output: seen.append(output.device.type))
    made(num_inference_steps=1, output_type="np", generator=torch.Generator().manual_seed(1))
    assert set(seen) == {"webgpu"}


def test_float64_only_where_the_adapter_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusers", reason="about Diffusers, which is not installed")
    from diffusers.utils import torch_utils

    from torch_webgpu.engine.record import engine

    here, narrower = torch.device("webgpu", 0), torch_utils.maybe_adjust_dtype_for_device
    found = engine().device(0)
    assert narrower(torch.int64, here) == torch.int64
    for float64, expected in ((True, torch.float64), (False, torch.float32)):
        monkeypatch.setattr(found, "target", replace(found.target, float64=float64))
        assert narrower(torch.float64, here) == expected
        assert narrower(torch.float64, torch.device("cpu")) == torch.float64
    before = plain("diffusers.utils.torch_utils", "maybe_adjust_dtype_for_device")
    assert before(torch.float64, here) == torch.float64  # the canary
