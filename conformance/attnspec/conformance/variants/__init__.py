"""Honest implementations, to test that the laws spare them: :data:`VARIANTS`, a module for each way to differ."""

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
