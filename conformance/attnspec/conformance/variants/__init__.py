"""Correct implementations that no law may fail: :data:`VARIANTS`, one module per kind of difference."""

from importlib import import_module
from pkgutil import iter_modules

from attnspec.conformance.variants.registry import VARIANTS, Variant, variant

__all__ = ["VARIANTS", "Variant", "variant"]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
