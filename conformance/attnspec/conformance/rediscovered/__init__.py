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
from attnspec.conformance.rediscovered.registry import REDISCOVERED, WAITING, Rediscovered, Waiting

__all__ = [
    "REDISCOVERED",
    "WAITING",
    "Rediscovered",
    "Waiting",
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
