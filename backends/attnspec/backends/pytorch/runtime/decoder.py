"""Bahdanau's decoder, for one step or many."""

import torch
from torch import Tensor
from torch.nn import functional

from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, batched_product, finite, times_vector, widened
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.tables import rows
from attnspec.backends.pytorch.runtime.transforms import intercepted
from attnspec.spec import AttentionDecoderParameters
from attnspec.spec.contract.tree import flatten, mapped

LARGE, MANY_STEPS = 2**15, 4
"""Elements of projected keys, and steps, from which a kernel is faster than PyTorch's operations."""


class Decoder:
    """Bahdanau's decoder, which projects the annotations once; computes in float32 or float64.

    ``annotations`` (*batch, m, d_h) and ``mask`` (*batch, m) are those of the operations. Where gradients are tracked,
    and for few or small steps, the context is computed by PyTorch's operations.
    """

    def __init__(
        self, annotations: Tensor, parameters: AttentionDecoderParameters[Tensor], mask: Tensor | None, steps: int
    ) -> None:
        half = annotations.dtype in HALF_DTYPES
        self.parameters = p = mapped(parameters, lambda _, x: widened(x)) if half else parameters
        self.mask, source = mask, widened(annotations)
        by_kernel = steps >= MANY_STEPS and source.shape[:-1].numel() * p.w_v.shape[0] >= LARGE
        by_kernel = by_kernel and not recorded(source, *flatten(p).values())
        if mask is not None and not by_kernel:
            some = mask.any(-1, keepdim=True)
            readable = source.is_cpu and not intercepted()
            if readable and some.all() and finite(source):
                self.excluded = ~mask
            else:
                # Excluded annotations become 0: if all are excluded, the context is 0 whatever the weights.
                source = torch.where(mask.unsqueeze(-1), source, 0.0)
                self.excluded = some & ~mask
        self.source, self.projected = source, functional.linear(source, p.w_k)
        self.keys = additive.prepare_keys(self.projected, p.w_v, source) if by_kernel else None
        if steps > 1:
            self.of_token, of_context = p.cell.w_xh.split([p.embedding.shape[-1], source.shape[-1]])
            self.of_both = torch.cat((of_context, p.cell.w_hh))

    def token_terms(self, tokens: Tensor) -> Tensor:
        """Terms (*batch, d_s) that tokens (*batch) add to the cell's pre-activation, with its bias."""
        return functional.linear(rows(tokens, self.parameters.embedding), self.of_token.mT, self.parameters.cell.b_h)

    def context(self, state: Tensor) -> Tensor:
        """The context (*batch, d_h) of states (*batch, d_s)."""
        query = functional.linear(state, self.parameters.w_q)
        if self.keys is not None:
            return additive.step(self.keys, query, mask=self.mask)
        scores = times_vector((query.unsqueeze(-2) + self.projected).tanh(), self.parameters.w_v)
        weights = (scores if self.mask is None else scores.masked_fill(self.excluded, -torch.inf)).softmax(-1)
        return batched_product(weights.unsqueeze(-2), self.source).squeeze(-2)

    def only(self, tokens: Tensor, state: Tensor) -> Tensor:
        """Next state (*batch, d_s) of a single step, for which no weights are split or joined."""
        p = self.parameters
        given = joined(rows(tokens, p.embedding), self.context(state))
        summed = functional.linear(given, p.cell.w_xh.mT, p.cell.b_h)
        if summed.dim() == 2 and summed.shape == state.shape:
            return torch.addmm(summed, state, p.cell.w_hh).tanh()
        return (summed + state @ p.cell.w_hh).tanh()

    def following(self, terms: Tensor, state: Tensor) -> Tensor:
        """Next state (*batch, d_s), from the token's terms and the previous state."""
        context = self.context(state)
        if context.shape[:-1] != state.shape[:-1]:
            state = state.expand(*broadcast(context.shape[:-1], state.shape[:-1]), state.shape[-1])
        both = torch.cat((context, state), -1)
        if terms.dim() == both.dim() == 2 and len(terms) == len(both):
            return torch.addmm(terms, both, self.of_both).tanh()
        summed: Tensor = terms + both @ self.of_both
        return summed.tanh()

    def scores(self, states: Tensor) -> Tensor:
        """Scores (*batch, vocabulary) of all tokens."""
        return functional.linear(states, self.parameters.w_o, self.parameters.b_o)


def joined(left: Tensor, right: Tensor) -> Tensor:
    """Features of ``left``, then those of ``right``."""
    batch = left.shape[:-1]
    if batch != right.shape[:-1]:
        batch = broadcast(batch, right.shape[:-1])
        left, right = (x.expand(*batch, x.shape[-1]) for x in (left, right))
    return torch.cat((left, right), -1)
