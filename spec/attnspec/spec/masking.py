"""Masking: which keys a query may attend to. Masks are boolean, True = may attend.

Where: In the result, True = may attend.
Edges: With m = 0 the mask is empty. With `n` = 0 the mask is empty.
"""

from typing import Generic, Protocol, TypedDict

from jaxtyping import Bool, Int

from attnspec.spec.contract.annotations import Array, Array_co
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S2, S3

__all__ = ["CausalMask", "MaskingOperations", "MaskingTable", "PaddingMask"]


@operation(
    "causal_mask",
    chapter="masking",
    formula=r"M_{ij} = [\,j \le i\,]\ \text{or}\ [\,j < i\,]",
    sources=[S2.passage("Masked Decoder Self-Attention"), S3.passage("Attention Mapping in the decoder")],
)
class CausalMask(Protocol[Array_co]):
    """Causal mask: every position may attend to itself and to earlier positions.

    Where: Without `include_self` it may attend to earlier positions only. Query i and key i are the same position, also
    when n ≠ m: the mask is aligned top left.
    Edges: Without `include_self` the first row is fully masked. Keys j ≥ n are attendable for no query.
    """

    def __call__(self, n: int, m: int, *, include_self: bool = True) -> Bool[Array_co, "{n} {m}"]: ...


@operation(
    "padding_mask",
    chapter="masking",
    formula=r"M_{bj} = [\,j < \ell_b\,]",
    sources=[S2.passage("Encoder Attention: padding")],
    lengths={"lengths": "m"},
)
class PaddingMask(Protocol[Array]):
    """Padding mask: keys within the length of their sequence are attendable, padding is not.

    Where: Pass it to attention as `mask[..., None, :]`.
    Edges: Length 0 masks everything, length m nothing.
    """

    def __call__(self, lengths: Int[Array, "*batch"], m: int) -> Bool[Array, "*batch {m}"]: ...


class MaskingOperations(Generic[Array]):
    """The operations of masking as methods of a backend class."""

    causal_mask: CausalMask[Array]
    padding_mask: PaddingMask[Array]


class MaskingTable(TypedDict, Generic[Array], total=False):
    """The operations of masking by name, as a typed dictionary."""

    causal_mask: CausalMask[Array]
    padding_mask: PaddingMask[Array]
