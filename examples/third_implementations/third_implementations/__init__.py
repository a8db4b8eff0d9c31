"""WebGPU implementations for torch-webgpu that forward to wgpu-native."""
