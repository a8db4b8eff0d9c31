"""What a program adds to the device: kernels, operators, element types and WebGPU implementations of its own."""
