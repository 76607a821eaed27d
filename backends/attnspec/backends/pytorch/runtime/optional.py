"""Flags: installed optional packages, and whether Triton kernels run on "cuda" devices.

They are constants, which torch.compile can read; it cannot trace a search for a module.
"""

from importlib.util import find_spec

import torch

HAS_LLVMLITE, HAS_TRITON = (find_spec(package) is not None for package in ("llvmlite", "triton"))

TRITON_ON_CUDA = HAS_TRITON and torch.version.hip is None
"""True where Triton kernels run on "cuda" devices. Their reciprocal is an instruction of NVIDIA's, which ends the
process in the compiler for AMD's GPUs."""
