"""Masking: which keys a query may attend to. Masks are boolean, True = may attend."""

from typing import Protocol

from jaxtyping import Bool, Int

from attnspec.spec.contract.operation import Array, Array_co, operation
from attnspec.spec.contract.sources import S2, S3


@operation(
    chapter="masking",
    formula=r"M_{ij} = [\,j \le i\,]\ \text{or}\ [\,j < i\,]",
    sources=[S2.passage("Masked Decoder Self-Attention"), S3.passage("Attention Mapping in the decoder")],
)
class CausalMask(Protocol[Array_co]):
    """Every position may attend to itself and to earlier ones; without `include_self` to earlier ones only.

    Where: n queries, m keys; mask (n, m) boolean. Aligned top left: query i and key i are the same position.
    Edges: without `include_self` the first row is fully masked; keys from n on are attendable by nobody;
    n = 0 or m = 0 gives an empty mask.
    Errors: a negative size raises.
    """

    def __call__(self, n: int, m: int, *, include_self: bool = True) -> Bool[Array_co, "{n} {m}"]:
        """The mask."""
        ...


@operation(
    chapter="masking",
    formula=r"M_{bj} = [\,j < \ell_b\,]",
    sources=[S2.passage("Encoder Attention: padding")],
)
class PaddingMask(Protocol[Array]):
    """The keys below each sequence's length may be attended to, the padding behind them may not.

    Where: lengths (*batch) integers, m keys; mask (*batch, m) boolean. Attention takes it as `mask[..., None, :]`.
    Edges: length 0 masks everything, length m nothing; m = 0 gives an empty mask.
    Errors: a length outside 0..m, or a negative m, raises.
    """

    def __call__(self, lengths: Int[Array, "*batch"], m: int) -> Bool[Array, "*batch {m}"]:
        """The mask."""
        ...
