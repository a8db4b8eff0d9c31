"""``diffusers``: a step of training a U-Net, and pipelines from noise to image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.conformance.target import DEVICE

from .architectures import SIZES, spread
from .compare import assert_on, assert_same_step, to, without_fallbacks

diffusers = pytest.importorskip("diffusers")
LIBRARY = "diffusers"

BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **BLOCKS,
    ).eval()


class Denoising(torch.nn.Module):
    """A U-Net with the loss of its training: what noise was added to the images?"""

    def __init__(self) -> None:
        super().__init__()
        self.unet = unet()
        self.scheduler = diffusers.DDPMScheduler(num_train_timesteps=50)

    def forward(self, images: torch.Tensor, noise: torch.Tensor, steps: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted = self.unet(self.scheduler.add_noise(images, noise, steps), steps).sample
        return {"loss": F.mse_loss(predicted, noise), "predicted": predicted}


def test_training_step_of_a_unet() -> None:
    batch = {"images": torch.rand(2, 1, 8, 8), "noise": torch.randn(2, 1, 8, 8), "steps": torch.tensor([3, 40])}
    assert_same_step(Denoising(), batch)


SCHEDULERS = ["DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"]


def denoised(scheduler: str, device: torch.device | str) -> torch.Tensor:
    """An image that a scheduler makes of noise in five steps; the noise it adds comes from the CPU on either device."""
    model = unet().to(device)
    assert_on(device, model.parameters(), scheduler)
    steps = getattr(diffusers, scheduler)(num_train_timesteps=50)
    steps.set_timesteps(5, device=device)
    generator = torch.Generator().manual_seed(5)
    sample = torch.randn(2, 1, 8, 8, generator=generator).to(device) * steps.init_noise_sigma
    takes_generator = "generator" in steps.step.__code__.co_varnames
    options = {"generator": generator} if takes_generator else {}
    with torch.no_grad():
        for t in steps.timesteps:
            predicted = model(steps.scale_model_input(sample, t), t).sample
            sample = steps.step(predicted, t, sample, **options).prev_sample
    assert sample.device.type == torch.device(device).type
    return sample.cpu()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers(scheduler: str) -> None:
    expected = denoised(scheduler, "cpu")
    with without_fallbacks():
        actual = denoised(scheduler, DEVICE)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_unconditional_pipeline() -> None:
    images = {}
    for device in ("cpu", DEVICE):
        pipeline = diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler(num_train_timesteps=50)).to(device)
        pipeline.set_progress_bar_config(disable=True)
        assert pipeline.device.type == torch.device(device).type
        assert_on(device, pipeline.unet.parameters(), "DDPMPipeline")
        images[device] = pipeline(
            batch_size=2, num_inference_steps=5, generator=torch.Generator().manual_seed(5), output_type="np"
        ).images
    assert images["cpu"].std() > 0.05
    assert abs(images[DEVICE] - images["cpu"]).max() < 1e-3


def stable_diffusion() -> Any:
    """Stable Diffusion's parts, small: a text encoder, a U-Net with cross-attention, an autoencoder."""
    import transformers

    torch.manual_seed(0)
    blocks = {**BLOCKS, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")}
    condition = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=2,
        **blocks,
    )
    autoencoder = diffusers.AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **BLOCKS,
    )
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(**SIZES))
    return diffusers.StableDiffusionPipeline(
        vae=autoencoder.eval(),
        text_encoder=spread(text).eval(),
        tokenizer=None,
        unet=condition.eval(),
        scheduler=diffusers.DDIMScheduler(num_train_timesteps=50),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def pictures(device: torch.device | str) -> Any:
    pipeline = stable_diffusion().to(device)
    pipeline.set_progress_bar_config(disable=True)
    assert_on(device, [*pipeline.unet.parameters(), *pipeline.vae.parameters()], "StableDiffusionPipeline")
    prompt = torch.randint(4, 99, (2, 12), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        embeds = pipeline.text_encoder(to(prompt, device)).last_hidden_state
    return pipeline(
        prompt_embeds=embeds[:1],
        negative_prompt_embeds=embeds[1:],
        num_inference_steps=4,
        guidance_scale=5.0,
        generator=torch.Generator().manual_seed(5),
        output_type="np",
    ).images


def test_text_to_image_pipeline() -> None:
    expected = pictures("cpu")
    with without_fallbacks():
        actual = pictures(DEVICE)
    assert expected.std() > 0.02
    assert abs(actual - expected).max() < 1e-3
