"""Correct formulas of transformers."""

from collections.abc import Callable

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.multihead import MultiHead
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
    DecoderLayerParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    LayerNormParameters,
)


class Transformer(MultiHead):
    """Layers."""

    def encoder_layer(
        self, x: Numbers, parameters: EncoderLayerParameters[Numbers], *, mask: Numbers = None, norm: str = "post"
    ) -> Numbers:
        """Self-attention, then the feed-forward network."""
        p, w = parameters, parameters.attention

        def attend(y: Numbers) -> Numbers:
            return self.multi_head_attention(y, y, y, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask)

        x = self.residual(x, attend, p.attention_norm, norm)
        return self.residual(x, lambda y: self.feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)

    def encoder_stack(
        self,
        x: Numbers,
        layers: tuple[EncoderLayerParameters[Numbers], ...],
        *,
        mask: Numbers = None,
        norm: str = "post",
    ) -> Numbers:
        """Layer after layer, in the common batch."""
        batch = x.shape[:-2] if mask is None else np.broadcast_shapes(x.shape[:-2], mask.shape[:-2])
        x = np.broadcast_to(x, (*batch, *x.shape[-2:]))
        for number, layer in self.numbered(layers):
            x = self.layer(number, x, layer, mask, norm)
        return x

    def numbered(
        self, layers: tuple[EncoderLayerParameters[Numbers], ...]
    ) -> list[tuple[int, EncoderLayerParameters[Numbers]]]:
        """The layers in order, with their numbers."""
        return list(enumerate(layers))

    def layer(
        self, number: int, x: Numbers, parameters: EncoderLayerParameters[Numbers], mask: Numbers, norm: str
    ) -> Numbers:
        """One layer of a stack."""
        return self.encoder_layer(x, parameters, mask=mask, norm=norm)

    def decoder_layer(
        self,
        x: Numbers,
        memory: Numbers,
        parameters: DecoderLayerParameters[Numbers],
        *,
        mask: Numbers = None,
        memory_mask: Numbers = None,
        norm: str = "post",
    ) -> Numbers:
        """Causal self-attention, attention to the memory, then the feed-forward network."""
        p = parameters
        x = self.residual(x, lambda y: self.attend_to_targets(y, p.attention, mask), p.attention_norm, norm)
        x = self.residual(
            x, lambda y: self.attend_to_memory(y, memory, p.cross_attention, memory_mask), p.cross_attention_norm, norm
        )
        return self.residual(x, lambda y: self.feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)

    def attend_to_targets(self, x: Numbers, w: MultiHeadParameters[Numbers], mask: Numbers) -> Numbers:
        """Causal self-attention."""
        return self.multi_head_attention(x, x, x, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask, causal=True)

    def attend_to_memory(
        self, x: Numbers, memory: Numbers, w: MultiHeadParameters[Numbers], memory_mask: Numbers
    ) -> Numbers:
        """Queries from x, keys and values from the memory."""
        return self.multi_head_attention(x, memory, memory, w.w_q, w.w_k, w.w_v, w.w_o, mask=memory_mask)

    def decoder_stack(
        self,
        x: Numbers,
        memory: Numbers,
        layers: tuple[DecoderLayerParameters[Numbers], ...],
        *,
        mask: Numbers = None,
        memory_mask: Numbers = None,
        norm: str = "post",
    ) -> Numbers:
        """Layer after layer, in the common batch."""
        others = [y.shape[:-2] for y in (memory, mask, memory_mask) if y is not None]
        x = np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-2], *others), *x.shape[-2:]))
        for number, layer in enumerate(layers):
            x = self.decoder_layer_of_stack(number, x, memory, layer, mask, memory_mask, norm)
        return x

    def decoder_layer_of_stack(
        self,
        number: int,
        x: Numbers,
        memory: Numbers,
        parameters: DecoderLayerParameters[Numbers],
        mask: Numbers,
        memory_mask: Numbers,
        norm: str,
    ) -> Numbers:
        """One layer of a stack."""
        return self.decoder_layer(x, memory, parameters, mask=mask, memory_mask=memory_mask, norm=norm)

    def residual(
        self, x: Numbers, sublayer: Callable[[Numbers], Numbers], p: LayerNormParameters[Numbers], norm: str
    ) -> Numbers:
        """A sublayer with its residual connection; an unknown norm raises."""
        if norm not in ("post", "pre"):
            raise ValueError(f"norm: expected 'post' or 'pre'; got {norm!r}")
        if norm == "pre":
            return x + sublayer(self.layer_norm(x, p))
        return self.layer_norm(x + sublayer(x), p)

    def layer_norm(self, x: Numbers, parameters: LayerNormParameters[Numbers]) -> Numbers:
        """Mean 0 and variance v/(v + ε), then gain and bias."""
        p = parameters
        centred = x - np.mean(x, axis=-1, keepdims=True)
        variance = self.variance(centred)
        return p.gain * centred / np.sqrt(variance + x.dtype.type(self.epsilon())) + p.bias

    def variance(self, centred: Numbers) -> Numbers:
        """The mean square of every row."""
        return np.mean(centred * centred, axis=-1, keepdims=True)

    def epsilon(self) -> float:
        """What is added to the variance."""
        return 1e-5

    def feed_forward(self, x: Numbers, parameters: FeedForwardParameters[Numbers]) -> Numbers:
        """One hidden layer on every position."""
        p, rows = parameters, x[..., None, :]
        hidden = self.rectified(self.project(rows, p.w_1) + p.b_1)
        return (self.project(hidden, p.w_2) + p.b_2)[..., 0, :]

    def rectified(self, x: Numbers) -> Numbers:
        """ReLU."""
        return np.maximum(x, x.dtype.type(0))
