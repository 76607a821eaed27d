"""All chapters: importing this module completes :data:`OPERATIONS`."""

from attnspec.spec import (
    attention,
    masking,
    moments,
    multihead,
    normalization,
    pooling,
    positional,
    scoring,
    seq2seq,
)
from attnspec.spec.contract.operation import OPERATIONS

__all__ = [
    "OPERATIONS",
    "attention",
    "masking",
    "moments",
    "multihead",
    "normalization",
    "pooling",
    "positional",
    "scoring",
    "seq2seq",
]
