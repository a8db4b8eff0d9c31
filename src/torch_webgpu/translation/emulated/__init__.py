"""What answers names that the device has no function for. Each module is about one part of torch.cuda."""
