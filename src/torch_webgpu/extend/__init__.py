"""What programs add: kernels and operators of their own, WebGPU implementations, and the registry of all there is."""
