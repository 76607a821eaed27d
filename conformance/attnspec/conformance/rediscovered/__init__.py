"""Publicly reported defects of attention kernels as mutants, one module per subject: :data:`REDISCOVERED`."""

from importlib import import_module
from pkgutil import iter_modules

from attnspec.conformance.rediscovered.registry import REDISCOVERED, Rediscovered

__all__ = ["REDISCOVERED", "Rediscovered"]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
