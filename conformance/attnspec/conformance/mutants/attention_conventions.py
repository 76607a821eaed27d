"""Mutants that do otherwise than they declare: alignment, windows and logarithms of attention kernels.

See :mod:`attnspec.conformance.mutants.semantics` for how mutants are written.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.kernels import VariableLengthAttention


@mutant(
    "packed sequences aligned by the totals, declared bottom right",
    operations=(VariableLengthAttention,),
    declares={"causal_alignment": "bottom-right"},
    breaks=("semantics.causal_alignment", "kernels.packed-equals-separate", "operation.oracle"),
    source="the offset is computed from the shapes of the arrays, which hold all sequences",
)
class OneOffset(Formulas):
    """Every packed sequence has the offset m − n of the whole arrays, not that of its own lengths."""

    def variable_length_attention(
        self, query: Numbers, key: Numbers, value: Numbers, query_ends: Numbers, key_ends: Numbers, **options: object
    ) -> Numbers:
        """Remember the offset of the whole arrays."""
        vars(self)["offset"] = key.shape[-2] - query.shape[-2]
        return Formulas.variable_length_attention(self, query, key, value, query_ends, key_ends, **options)

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """The causal mask j ≤ i + offset."""
        return np.tri(n, m, vars(self)["offset"], dtype=bool) if causal else mask
