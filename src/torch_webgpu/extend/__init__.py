"""What programs add: kernels, operators, element types, WebGPU implementations; and the registry of all there is."""
