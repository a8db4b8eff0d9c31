"""Sparse tensors, whose kernels are loaded with the first one."""

LATE = frozenset({"sparse_kernels", "sparse_reduce", "sparse_softmax"})
