"""Instruction sets that the session ``processors`` of nox forbids to our compiled kernels."""

import os

WITHHELD = {"avx2": ("avx512", "avx10", "amx"), "avx512": ("amx",)}
"""Prefixes of CPU features hidden from LLVM, by ATTNSPEC_TEST_INSTRUCTIONS, the widest instruction set left."""

if forced := os.environ.get("ATTNSPEC_TEST_INSTRUCTIONS"):
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    for feature in features:
        features[feature] &= not feature.startswith(WITHHELD[forced])
    # before any kernel is imported, whose modules read the features once
    llvm.get_host_cpu_features = lambda: features
