"""Flags: which optional packages are installed.

They are constants, which torch.compile can read; it cannot trace a search for a module.
"""

from importlib.util import find_spec

HAS_LLVMLITE, HAS_TRITON = (find_spec(package) is not None for package in ("llvmlite", "triton"))
