"""Vector kernels compiled by LLVM in this process: code generation, machine code, threads."""
