"""GPU kernels: tensors are turned into payloads on the device, one file per kind of work."""
