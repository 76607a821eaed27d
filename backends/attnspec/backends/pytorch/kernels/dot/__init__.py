"""Scaled dot-product attention on the CPU in kernels that LLVM compiles in this process; nothing of size n*m."""
