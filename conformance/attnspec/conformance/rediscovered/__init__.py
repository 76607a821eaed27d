"""Public defects of attention kernels, each transcribed from its report: :data:`REDISCOVERED`, a module a subject."""

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
