"""The laws, a module for each chapter; ``storage``, ``operation`` and ``semantics`` hold those of every chapter."""

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
    storage,
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
    "storage",
    "transformer",
    "vision",
]
