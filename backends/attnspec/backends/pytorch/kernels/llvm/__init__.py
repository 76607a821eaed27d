"""Kernels written in Python and compiled by LLVM in this process: code generation, machine code, threads."""
