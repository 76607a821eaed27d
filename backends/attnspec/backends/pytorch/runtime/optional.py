"""Flags of optional packages that are installed.

They are looked up once: torch.compile can read a constant, but not search for a module.
"""

from importlib.util import find_spec

HAS_LLVMLITE, HAS_TRITON = (find_spec(package) is not None for package in ("llvmlite", "triton"))
