"""The GPU: adapters, buffers, pipelines, command submission and transfers. Nothing above this package touches wgpu."""
