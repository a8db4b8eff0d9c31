"""A browser as a device: :func:`torch.webgpu.serve`, and the command ``torch-webgpu serve``."""
