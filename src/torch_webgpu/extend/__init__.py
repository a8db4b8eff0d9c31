"""What programs add to the device: kernels, operators, element types and WebGPU implementations of their own, and
the registry of all that is there.
"""
