"""Every operation as a correct formula, made of steps that a mutant or a variant can replace one at a time.

The methods that have the name of an operation take its arguments; the others are the steps. All compute in the dtype of
their arguments, and all run on arrays that record gradients too. Each chapter is a class of its own, which inherits
from the chapters whose steps it uses.
"""

from attnspec.conformance.mutants.correct.attention import Attention
from attnspec.conformance.mutants.correct.complexity import Comparators
from attnspec.conformance.mutants.correct.kernels import Kernels
from attnspec.conformance.mutants.correct.masking import Masking
from attnspec.conformance.mutants.correct.multihead import MultiHead
from attnspec.conformance.mutants.correct.normalization import Normalization
from attnspec.conformance.mutants.correct.pooling import Pooling
from attnspec.conformance.mutants.correct.positional import Positional
from attnspec.conformance.mutants.correct.recurrent import Recurrent
from attnspec.conformance.mutants.correct.scoring import Scoring
from attnspec.conformance.mutants.correct.seq2seq import Seq2Seq
from attnspec.conformance.mutants.correct.transformer import Transformer
from attnspec.conformance.mutants.correct.vision import Vision


class Formulas(
    Comparators,
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
    """The correct formulas of all chapters, the last one first: a chapter comes before those that it builds on."""
