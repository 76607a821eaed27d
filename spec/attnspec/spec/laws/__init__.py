"""The laws, a module for each chapter; ``memory``, ``operation`` and ``semantics`` hold those of every chapter."""

from attnspec.spec.laws import (
    attention,
    complexity,
    masking,
    memory,
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
    "memory",
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
