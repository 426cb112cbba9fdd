"""Running kernels: the parallel driver, convolution and pooling on numpy arrays."""
