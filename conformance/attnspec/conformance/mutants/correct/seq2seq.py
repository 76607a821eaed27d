"""Correct formulas of what a decoder reads of its encoder."""

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.attention import Attention


class Seq2Seq(Attention):
    """Contexts of decoders."""

    def bahdanau_context(
        self, state: Numbers, annotations: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """The state attends additively to the annotations."""
        every_query = None if mask is None else mask[..., None, :]
        query = state[..., None, :]
        return self.additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=every_query)[..., 0, :]
