"""Additive attention on GPUs, in Triton: forward and backward kernels, decoding steps."""
