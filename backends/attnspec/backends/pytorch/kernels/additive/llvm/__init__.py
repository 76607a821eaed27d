"""Additive attention on CPUs, in kernels compiled by LLVM.

Kernels of factorised exponentials (path ``llvm``) are in `factors`, `factor_range`, `scores`, `forward`, `backward` and
`decoding_kernel`; `layout` prepares their tensors, `forward_plan` and `gradient_plan` launch them. `factorised`
computes whole calls with their projections, `operators` calls with broadcast batches or non-finite values, `decoding`
steps with prepared keys. Pointwise kernels (path ``pointwise``), for few terms, are in `pointwise_kernels`;
`pointwise_plan`, `pointwise` and `pointwise_gradients` call them. For few rows, `small` calls them together with the
projections of `small_kernels`.
"""
