"""Scaled dot-product attention: compiled kernels on the CPU, PyTorch's fused kernels on accelerators."""
