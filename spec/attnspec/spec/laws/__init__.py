"""The laws, a module for each chapter; ``operation`` and ``semantics`` hold those that concern every chapter."""

from attnspec.spec.laws import (
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
    semantics,
    seq2seq,
    transformer,
    vision,
)

__all__ = [
    "attention",
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
    "semantics",
    "seq2seq",
    "transformer",
    "vision",
]
