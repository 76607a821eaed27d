"""The checks of the laws, a module for each chapter; ``registry.CHECKS`` holds them all."""

from attnspec.conformance.laws import (
    attention,
    complexity,
    masking,
    moments,
    multihead,
    normalization,
    operation,
    pooling,
    positional,
    recurrent,
    scoring,
    searches,
    semantics,
    seq2seq,
    transformer,
    vision,
)
from attnspec.conformance.laws.registry import CHECKS, Check, checks

__all__ = [
    "CHECKS",
    "Check",
    "attention",
    "checks",
    "complexity",
    "masking",
    "moments",
    "multihead",
    "normalization",
    "operation",
    "pooling",
    "positional",
    "recurrent",
    "scoring",
    "searches",
    "semantics",
    "seq2seq",
    "transformer",
    "vision",
]
