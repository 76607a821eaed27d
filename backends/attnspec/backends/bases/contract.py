"""Types of backends, with every operation of the specification under its name.

:class:`Operations` is the base of classes, :class:`Table` the type of dictionaries. Both only declare types: a backend
provides the operations that it defines. To type-check a single function, use ``attnspec.spec.implements``.
"""

from typing import Generic

from attnspec.spec import (
    Array,
    AttentionOperations,
    AttentionTable,
    ComplexityOperations,
    ComplexityTable,
    KernelsOperations,
    KernelsTable,
    MaskingOperations,
    MaskingTable,
    MultiHeadOperations,
    MultiHeadTable,
    NormalizationOperations,
    NormalizationTable,
    PoolingOperations,
    PoolingTable,
    PositionalOperations,
    PositionalTable,
    RecurrentOperations,
    RecurrentTable,
    ScoringOperations,
    ScoringTable,
    Seq2SeqOperations,
    Seq2SeqTable,
    TransformerOperations,
    TransformerTable,
    VisionOperations,
    VisionTable,
)


class Operations(
    ScoringOperations[Array],
    NormalizationOperations[Array],
    MaskingOperations[Array],
    PoolingOperations[Array],
    AttentionOperations[Array],
    MultiHeadOperations[Array],
    PositionalOperations[Array],
    RecurrentOperations[Array],
    Seq2SeqOperations[Array],
    TransformerOperations[Array],
    VisionOperations[Array],
    KernelsOperations[Array],
    ComplexityOperations[Array],
    Generic[Array],
):
    """Base of backend classes: type checkers compare methods named like operations with their Protocols."""


class Table(
    ScoringTable[Array],
    NormalizationTable[Array],
    MaskingTable[Array],
    PoolingTable[Array],
    AttentionTable[Array],
    MultiHeadTable[Array],
    PositionalTable[Array],
    RecurrentTable[Array],
    Seq2SeqTable[Array],
    TransformerTable[Array],
    VisionTable[Array],
    KernelsTable[Array],
    ComplexityTable[Array],
    Generic[Array],
    total=False,
):
    """A backend's operations as a dictionary: ``operations: Table[Tensor] = {"dot_scores": scores}``."""
