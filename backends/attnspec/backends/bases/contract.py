"""Types of backends, with every operation of the specification under its name.

:class:`Operations` is the base of classes, :class:`Table` the type of dictionaries. Both only declare types: a backend
provides the operations that it defines. To type-check a single function, use ``attnspec.spec.implements``.
"""

from typing import Generic

from attnspec import spec
from attnspec.spec import Array


class Operations(
    spec.ScoringOperations[Array],
    spec.NormalizationOperations[Array],
    spec.MaskingOperations[Array],
    spec.PoolingOperations[Array],
    spec.AttentionOperations[Array],
    spec.MultiHeadOperations[Array],
    spec.PositionalOperations[Array],
    spec.RecurrentOperations[Array],
    spec.Seq2SeqOperations[Array],
    spec.TransformerOperations[Array],
    spec.VisionOperations[Array],
    spec.KernelsOperations[Array],
    spec.LinearOperations[Array],
    spec.SelectedOperations[Array],
    spec.ComplexityOperations[Array],
    Generic[Array],
):
    """Base of backend classes: type checkers compare methods named like operations with their Protocols."""


class Table(
    spec.ScoringTable[Array],
    spec.NormalizationTable[Array],
    spec.MaskingTable[Array],
    spec.PoolingTable[Array],
    spec.AttentionTable[Array],
    spec.MultiHeadTable[Array],
    spec.PositionalTable[Array],
    spec.RecurrentTable[Array],
    spec.Seq2SeqTable[Array],
    spec.TransformerTable[Array],
    spec.VisionTable[Array],
    spec.KernelsTable[Array],
    spec.LinearTable[Array],
    spec.SelectedTable[Array],
    spec.ComplexityTable[Array],
    Generic[Array],
    total=False,
):
    """A backend's operations as a dictionary: ``operations: Table[Tensor] = {"dot_scores": scores}``."""
