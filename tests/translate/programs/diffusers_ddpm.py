import json

import torch
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=4,
).to(device)
scheduler = DDPMScheduler(num_train_timesteps=20)
optimizer = torch.optim.AdamW(unet.parameters(), lr=5e-3)
clean = torch.sin(torch.linspace(0, 6.28, 8)).expand(4, 1, 8, 8).to(device)
losses = []
for step in range(6):
    noise = torch.randn(clean.shape).to(clean.device)
    timesteps = torch.randint(0, 20, (4,)).to(device)
    noisy = scheduler.add_noise(clean, noise, timesteps)
    loss = torch.nn.functional.mse_loss(unet(noisy, timesteps).sample, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

pipe = DDPMPipeline(unet=unet, scheduler=DDIMScheduler(num_train_timesteps=20))
pipe = pipe.to("cuda")
pipe.set_progress_bar_config(disable=True)
image = pipe(generator=torch.Generator("cuda").manual_seed(0), num_inference_steps=2, output_type="np").images
assert pipe.device.type == "cuda" and image.shape == (1, 8, 8, 1)
print(json.dumps({"losses": losses, "gpu": next(pipe.unet.parameters()).is_cuda}))
