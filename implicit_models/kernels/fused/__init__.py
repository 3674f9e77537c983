"""The kernels in Triton: fewer passes over memory, the same signatures as `kernels.reference`."""
