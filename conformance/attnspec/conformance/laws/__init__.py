"""Checks of the laws, by chapter or subject; importing them fills ``judging.checks.CHECKS``."""

from importlib import import_module
from pkgutil import iter_modules

from attnspec.conformance.judging.checks import CHECKS, Check, checks

__all__ = ["CHECKS", "Check", "checks"]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
