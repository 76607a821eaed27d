"""What attention is: operations, laws, semantics, precision and the errata of the sources."""

from attnspec.spec import laws
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    GeneralAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.contract.backend import Backend, Converts, Differentiates, Limits, implements
from attnspec.spec.contract.law import LAWS, Law
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS, Argument, Array, Dim, Kind, Operation, operation
from attnspec.spec.contract.precision import Precision, precision
from attnspec.spec.contract.semantics import QUESTIONS, Semantics
from attnspec.spec.contract.shapes import ShapeError
from attnspec.spec.errata import ERRATA, Erratum
from attnspec.spec.masking import CausalMask, PaddingMask
from attnspec.spec.moments import DotProductMean, DotProductVariance
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import MeanNormalization, Softmax
from attnspec.spec.pooling import AttentionPooling, AveragePooling, NadarayaWatson
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.scoring import (
    AdditiveScores,
    DotScores,
    GaussianScores,
    GeneralScores,
    LocationScores,
    ScaledDotScores,
)
from attnspec.spec.seq2seq import BahdanauContext

SPEC_VERSION = "2026.11"
"""The version of the specification (year.month), apart from that of the package."""

__all__ = [
    "CHAPTERS",
    "ERRATA",
    "LAWS",
    "OPERATIONS",
    "QUESTIONS",
    "SPEC_VERSION",
    "AdditiveAttention",
    "AdditiveScores",
    "Argument",
    "Array",
    "AttentionPooling",
    "AveragePooling",
    "Backend",
    "BahdanauContext",
    "CausalMask",
    "Converts",
    "CrossAttention",
    "Differentiates",
    "Dim",
    "DotProductAttention",
    "DotProductMean",
    "DotProductVariance",
    "DotScores",
    "Erratum",
    "GaussianScores",
    "GeneralAttention",
    "GeneralScores",
    "Kind",
    "Law",
    "Limits",
    "LocationScores",
    "MeanNormalization",
    "MultiHeadAttention",
    "NadarayaWatson",
    "Operation",
    "PaddingMask",
    "Precision",
    "ProjectedSelfAttention",
    "ScaledDotProductAttention",
    "ScaledDotScores",
    "SelfAttention",
    "Semantics",
    "ShapeError",
    "SinusoidalPositionalEncoding",
    "Softmax",
    "implements",
    "laws",
    "operation",
    "precision",
]
