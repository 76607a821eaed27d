"""Publicly reported defects of attention kernels as mutants, one module per subject: :data:`REDISCOVERED`."""

from attnspec.conformance.rediscovered import (
    causality,
    gradients,
    integers,
    layouts,
    masks,
    models,
    options,
    softmaxes,
    tiles,
)  # fmt: skip
from attnspec.conformance.rediscovered.registry import REDISCOVERED, Rediscovered

__all__ = [
    "REDISCOVERED",
    "Rediscovered",
    "causality",
    "gradients",
    "integers",
    "layouts",
    "masks",
    "models",
    "options",
    "softmaxes",
    "tiles",
]
