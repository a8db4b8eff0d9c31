"""What a program adds to PyTorch on the device: kernels, operators, element types, devices."""
