"""Additive attention on GPUs, in Triton kernels.

`operators` holds the custom operators, forward and backward; `decoding` the decoding step with prepared keys. Kernels
are in `factors`, `forward`, `backward` and `decoding_kernels`, built from the device functions of `terms`; `launch`
starts them.
"""
