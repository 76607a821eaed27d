"""Correct formulas of every operation, in steps that mutants and variants replace.

Methods named after an operation take its arguments; all other methods are steps. All compute in the dtype of their
arguments, and also run on arrays that record gradients (``tape.py``). Each chapter is a class of its own and inherits
from the chapters whose steps it uses.
"""

from attnspec.conformance.mutants.correct.attention import Attention
from attnspec.conformance.mutants.correct.complexity import Comparators
from attnspec.conformance.mutants.correct.kernels import Kernels
from attnspec.conformance.mutants.correct.linear import LinearAttention
from attnspec.conformance.mutants.correct.masking import Masking
from attnspec.conformance.mutants.correct.multihead import MultiHead
from attnspec.conformance.mutants.correct.normalization import Normalization
from attnspec.conformance.mutants.correct.pooling import Pooling
from attnspec.conformance.mutants.correct.positional import Positional
from attnspec.conformance.mutants.correct.recurrent import Recurrent
from attnspec.conformance.mutants.correct.scoring import Scoring
from attnspec.conformance.mutants.correct.selected import SelectedAttention
from attnspec.conformance.mutants.correct.seq2seq import Seq2Seq
from attnspec.conformance.mutants.correct.transformer import Transformer
from attnspec.conformance.mutants.correct.vision import Vision


class Formulas(
    Comparators,
    LinearAttention,
    SelectedAttention,
    Kernels,
    Vision,
    Transformer,
    Seq2Seq,
    Recurrent,
    Positional,
    MultiHead,
    Attention,
    Pooling,
    Masking,
    Normalization,
    Scoring,
):
    """Correct formulas of all chapters; each class comes before its bases."""
