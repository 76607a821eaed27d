"""Backends that are wrong in one way each, to test the laws with: :data:`MUTANTS`, a module for each chapter."""

from attnspec.conformance.mutants import (
    attention,
    calling,
    decoders,
    gradients,
    masking,
    moments,
    multihead,
    normalization,
    pooling,
    positional,
    recurrent,
    scoring,
    semantics,
    seq2seq,
    transformer,
    vision,
)
from attnspec.conformance.mutants.registry import MUTANTS, Mutant, mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "attention",
    "calling",
    "decoders",
    "gradients",
    "masking",
    "moments",
    "multihead",
    "mutant",
    "normalization",
    "pooling",
    "positional",
    "recurrent",
    "scoring",
    "semantics",
    "seq2seq",
    "transformer",
    "vision",
]
