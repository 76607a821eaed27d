"""Correct implementations that no law may fail: :data:`VARIANTS`, one module per kind of difference."""

from attnspec.conformance.variants import (
    additive,
    compiled,
    declared,
    kernels,
    layouts,
    precisions,
    recurrent,
    softmaxes,
    stacks,
    sums,
    training,
)
from attnspec.conformance.variants.registry import VARIANTS, Variant, variant

__all__ = [
    "VARIANTS",
    "Variant",
    "additive",
    "compiled",
    "declared",
    "kernels",
    "layouts",
    "precisions",
    "recurrent",
    "softmaxes",
    "stacks",
    "sums",
    "training",
    "variant",
]
