"""Bahdanau's decoder: context, next state and scores, for one step or many."""

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite, times_vector, upcast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.products import add_product, batched_product, operand, wide_linear
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.tables import embedding_rows
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted
from attnspec.spec import AttentionDecoderParameters
from attnspec.spec.contract.tree import flatten, map_tree

LARGE, MANY_STEPS = 2**15, 4
"""Elements of projected keys, and steps, from which a kernel beats PyTorch's operations."""


class Decoder:
    """Bahdanau's decoder in float32 or float64; it projects the annotations once.

    ``annotations`` are (*batch, m, d_h), the ``mask`` (*batch, m). A kernel computes the context if there are at least
    `MANY_STEPS` steps, `LARGE` projected elements and no gradients; otherwise PyTorch's operations do.
    """

    def __init__(
        self, annotations: Tensor, parameters: AttentionDecoderParameters[Tensor], mask: Tensor | None, steps: int
    ) -> None:
        self.dtype = annotations.dtype
        recorded = needs_gradients(annotations, *flatten(parameters).values())

        def widened(path: str, x: Tensor) -> Tensor:
            # Biases and w_v are no operands of matrix products. Gradients of steps and of tokens are summed in float32.
            wide = x.dim() == 1 or (recorded and steps > 1) or path == "embedding"
            return upcast(x) if wide else operand(x)

        self.parameters = p = map_tree(parameters, widened) if self.dtype in HALF_DTYPES else parameters
        self.mask, source = mask, upcast(annotations) if recorded else operand(annotations)
        uses_kernel = steps >= MANY_STEPS and source.shape[:-1].numel() * p.w_v.shape[0] >= LARGE
        uses_kernel = uses_kernel and not recorded
        if mask is not None and not uses_kernel:
            # `excluded`: keys whose scores become −∞; none in a row without attendable keys
            any_attendable = mask.any(-1, keepdim=True)
            readable = source.is_cpu and not operations_intercepted()
            if readable and any_attendable.all() and finite(source):
                self.excluded = ~mask
            else:
                # Excluded annotations become 0, so that a row without attendable keys has context 0 at any weights.
                source = torch.where(mask.unsqueeze(-1), source, 0.0)
                self.excluded = any_attendable & ~mask
        self.source, self.projected = source, wide_linear(source, p.w_k, dtype=self.dtype)
        self.keys = additive.prepare_keys(self.projected, p.w_v, upcast(source)) if uses_kernel else None
        if steps > 1:
            self.w_token, w_context = torch.split_with_sizes(p.cell.w_xh, [p.embedding.shape[-1], source.shape[-1]])
            self.w_context_and_state = torch.cat((w_context, p.cell.w_hh))

    def token_terms(self, tokens: Tensor) -> Tensor:
        """Return the tokens' part (*batch, d_s) of the cell's pre-activation, bias included."""
        p = self.parameters
        return wide_linear(embedding_rows(tokens, p.embedding), self.w_token.mT, p.cell.b_h, self.dtype)

    def context(self, state: Tensor) -> Tensor:
        """Return the context (*batch, d_h) of states (*batch, d_s)."""
        query = wide_linear(state, self.parameters.w_q)
        if self.keys is not None:
            return additive.step(self.keys, query, mask=self.mask)
        scores = times_vector((query.unsqueeze(-2) + self.projected).tanh(), self.parameters.w_v)
        weights = (scores if self.mask is None else scores.masked_fill(self.excluded, -torch.inf)).softmax(-1)
        return batched_product(weights.unsqueeze(-2), self.source).squeeze(-2)

    def single_step(self, tokens: Tensor, state: Tensor) -> Tensor:
        """Return the state (*batch, d_s) after the only step, for which no weights are split."""
        p = self.parameters
        inputs = concatenated(embedding_rows(tokens, p.embedding), self.context(state))
        return add_product(wide_linear(inputs, p.cell.w_xh.mT, p.cell.b_h), state, p.cell.w_hh).tanh()

    def next_state(self, terms: Tensor, state: Tensor) -> Tensor:
        """Return the next state (*batch, d_s) from the result of `token_terms` and the previous state."""
        context = self.context(state)
        if context.shape[:-1] != state.shape[:-1]:
            state = state.expand(*broadcast(context.shape[:-1], state.shape[:-1]), state.shape[-1])
        both = torch.cat((context, state), -1)
        return add_product(terms, both, self.w_context_and_state).tanh()

    def scores(self, states: Tensor) -> Tensor:
        """Return scores (*batch, vocabulary) of all tokens, before the softmax."""
        return wide_linear(states, self.parameters.w_o, self.parameters.b_o, self.dtype)


def concatenated(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate the features of ``left`` and ``right``; batches broadcast."""
    batch = left.shape[:-1]
    if batch != right.shape[:-1]:
        batch = broadcast(batch, right.shape[:-1])
        left, right = (x.expand(*batch, x.shape[-1]) for x in (left, right))
    return torch.cat((left, right), -1)
