"""Fast kernels: additive attention and scaled dot-product attention, and the compiler of those for CPUs."""
