"""Additive attention on CPUs: forward and backward kernels, decoding steps."""
