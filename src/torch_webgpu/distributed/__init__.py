"""``torch.distributed`` on webgpu: collectives of PyTorch's own process groups, over gloo, staged through the host.

:mod:`.registration` is what every program loads, and :mod:`.data_parallel` for several adapters in one process; the
rest is imported with the first process group.
"""
