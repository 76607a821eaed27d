"""Additive attention on GPUs, in Triton kernels.

`operators` are what PyTorch calls, forward and backward; `decoding` takes steps with keys prepared once. Kernels are
in `factors`, `forward`, `backward` and `step`, built from the device functions of `terms`; `launch` starts them.
"""
