"""``torch.distributed`` on webgpu: collectives of PyTorch's own process groups, over gloo, staged through the host.

:mod:`.registration` is what every program loads; the rest is imported with the first process group.
"""
