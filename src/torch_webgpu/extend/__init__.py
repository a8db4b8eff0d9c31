"""What programs add to the device: WebGPU implementations, and the registry of all that is there."""
