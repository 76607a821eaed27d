"""Additive attention on CPUs, in kernels compiled by LLVM.

Kernels that share exponentials are in `factors`, `reach`, `scores`, `forward`, `backward` and `step`; `layout` and
`attention` prepare what they take, `attention_gradients` and `unit_gradients` call those of gradients, `shared` and
`shared_gradients` take whole calls without a mask by one plan, in the steps of `shared_steps` and
`shared_gradient_steps`, `operators` all others, and `decoding` steps with keys prepared once. Kernels for few terms are
in `direct_kernels`; `direct_plan`, `direct` and `direct_gradients` call them, and `few`, with the `few_kernels` of
projections, where rows are few too.
"""
