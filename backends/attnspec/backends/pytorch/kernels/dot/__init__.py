"""Scaled dot-product attention: compiled kernels on the CPU, PyTorch's fused kernels on accelerators.

Entry points are `sdpa`, `groups` and `packed`. On the CPU, `path_choice` chooses `tiled`, `small`, `decode` or `fused`.
"""
