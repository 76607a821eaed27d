"""Laws, a module per chapter.

``operation``, ``quantization``, ``semantics``, ``sizes``, ``storage`` and ``training`` span chapters.
"""

from attnspec.spec.laws import (
    attention,
    complexity,
    kernels,
    linear,
    masking,
    moments,
    multihead,
    normalization,
    operation,
    pooling,
    positional,
    recurrent,
    scoring,
    selected,
    semantics,
    seq2seq,
    sizes,
    storage,
    training,
    transformer,
    vision,
)

# Last, since the position of a law decides on which examples it is checked.
from attnspec.spec.laws import quantization  # isort: skip

__all__ = [
    "attention",
    "complexity",
    "kernels",
    "linear",
    "masking",
    "moments",
    "multihead",
    "normalization",
    "operation",
    "pooling",
    "positional",
    "quantization",
    "recurrent",
    "scoring",
    "selected",
    "semantics",
    "seq2seq",
    "sizes",
    "storage",
    "training",
    "transformer",
    "vision",
]
