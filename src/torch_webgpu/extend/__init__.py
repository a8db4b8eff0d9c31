"""A program's own kernels, in WGSL."""
