"""Additive attention on CPUs, in kernels compiled by LLVM.

Kernels of factorised exponentials are in `factors`, `reach`, `scores`, `forward`, `backward` and `step`; `layout`
prepares the tensors that they read, `forward_steps` and `gradient_steps` launch them. `factorised` serves whole calls
with their projections, `operators` those whose batches broadcast or whose values are not finite, `decoding` steps with
keys prepared once. Pointwise kernels, for few terms, are in `direct_kernels`; `direct_plan`, `direct` and
`direct_gradients` call them, and `few`, with the `few_kernels` of projections, where rows are few too.
"""
