"""Additive attention on CPUs, in kernels compiled by LLVM.

Kernels of factorised exponentials are in `factors`, `reach`, `scores`, `forward`, `backward` and `step`; `layout`
prepares their tensors, `forward_steps` and `gradient_steps` launch them. `factorised` computes whole calls with their
projections, `operators` calls with broadcast batches or non-finite values, `decoding` steps with prepared keys.
Pointwise kernels, for few terms, are in `direct_kernels`; `direct_plan`, `direct` and `direct_gradients` call them. For
few rows, `few` calls them together with the projections of `few_kernels`.
"""
