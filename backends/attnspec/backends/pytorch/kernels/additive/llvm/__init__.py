"""Additive attention on CPUs, in kernels compiled by LLVM.

`operators` are what PyTorch calls, forward and backward; `decoding` takes steps with keys prepared once. Kernels are
in `factors`, `scores`, `forward`, `backward` and `step`; `layout` and `attention` prepare what they take.
"""
