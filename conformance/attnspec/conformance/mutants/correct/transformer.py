"""Correct formulas of transformers."""

from collections.abc import Callable

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.multihead import MultiHead
from attnspec.conformance.mutants.correct.positional import Positional
from attnspec.conformance.mutants.correct.seq2seq import Seq2Seq
from attnspec.reference.defining.choices import choice
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
    DecoderLayerParameters,
    EncoderDecoderParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    GatedFeedForwardParameters,
    KeyValueCache,
    LanguageModelParameters,
    LayerNormParameters,
)


class Transformer(Seq2Seq, Positional, MultiHead):
    """Layers, stacks and models of transformers."""

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
        """Apply the encoder layers in order to x, broadcast to the common batch."""
        batch = x.shape[:-2] if mask is None else np.broadcast_shapes(x.shape[:-2], mask.shape[:-2])
        x = np.broadcast_to(x, (*batch, *x.shape[-2:]))
        for number, layer in self.numbered_layers(layers):
            x = self.encoder_layer_of_stack(number, x, layer, mask, norm)
        return x

    def numbered_layers(
        self, layers: tuple[EncoderLayerParameters[Numbers], ...]
    ) -> list[tuple[int, EncoderLayerParameters[Numbers]]]:
        """Pairs of number and layer, in order."""
        return list(enumerate(layers))

    def encoder_layer_of_stack(
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
        w = p.cross_attention
        x = self.residual(x, lambda y: self.attend_to_memory(y, memory, w, memory_mask), p.cross_attention_norm, norm)
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
        """Apply the decoder layers in order to x, broadcast to the common batch."""
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

    def cached_decoder_step(
        self,
        x: Numbers,
        cache: KeyValueCache[Numbers],
        memory: Numbers,
        parameters: DecoderLayerParameters[Numbers],
        *,
        mask: Numbers = None,
        memory_mask: Numbers = None,
        norm: str = "post",
    ) -> tuple[Numbers, KeyValueCache[Numbers]]:
        """Output of one new row, and the cache with its keys and values appended."""
        p, w = parameters, parameters.attention
        batches = [x.shape[:-1], cache.key.shape[:-3], cache.value.shape[:-3], memory.shape[:-2]]
        batches += [m.shape[:-1] for m in (mask, memory_mask) if m is not None]
        row = np.broadcast_to(x, (*np.broadcast_shapes(*batches), x.shape[-1]))[..., None, :]
        entry = self.cache_input(row, p.attention_norm, norm)
        extended = KeyValueCache(self.append_row(cache.key, entry, w.w_k), self.append_row(cache.value, entry, w.w_v))
        allowed = None if mask is None else self.extend_mask(mask, cache.key.shape[-2])
        row = self.residual(row, lambda y: self.attend_to_cache(y, extended, w, allowed), p.attention_norm, norm)
        row_mask = None if memory_mask is None else memory_mask[..., None, :]
        row = self.residual(
            row, lambda y: self.attend_to_memory(y, memory, p.cross_attention, row_mask), p.cross_attention_norm, norm
        )
        row = self.residual(row, lambda y: self.feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)
        return row[..., 0, :], extended

    def cache_input(self, row: Numbers, p: LayerNormParameters[Numbers], norm: str) -> Numbers:
        """Input of the key and value projections: the row, normalized if ``norm`` is "pre"."""
        return self.layer_norm(row, p) if norm == "pre" else row

    def append_row(self, cached: Numbers, row: Numbers, w: Numbers) -> Numbers:
        """Append the projected row (…, 1, d) to the cache (…, h, t, p)."""
        projected = self.project_heads(row, w)
        before = np.broadcast_to(cached, (*projected.shape[:-2], *cached.shape[-2:]))
        return np.concatenate([before, projected], axis=-2)

    def extend_mask(self, mask: Numbers, cached: int) -> Numbers:
        """Append True for the new row to the cache's mask: (…, 1, 1, t + 1)."""
        cache_mask = np.broadcast_to(mask, (*mask.shape[:-1], cached))
        return np.concatenate([cache_mask, np.ones((*cache_mask.shape[:-1], 1), bool)], axis=-1)[..., None, None, :]

    def attend_to_cache(
        self, row: Numbers, grown: KeyValueCache[Numbers], w: MultiHeadParameters[Numbers], allowed: Numbers
    ) -> Numbers:
        """Attention of one row to the cached keys and values."""
        heads = self.attend_heads(self.project_heads(row, w.w_q), grown.key, grown.value, allowed, False)
        return self.project(self.join_heads(heads), w.w_o)

    def encoder_decoder(
        self,
        source: Numbers,
        target: Numbers,
        parameters: EncoderDecoderParameters[Numbers],
        *,
        source_mask: Numbers = None,
        mask: Numbers = None,
    ) -> Numbers:
        """Token probabilities by encoder, decoder and output layer."""
        p = parameters
        row_mask = None if source_mask is None else source_mask[..., None, :]
        memory = self.encode_source(self.embed_at_positions(source, p.source_embedding), p, row_mask)
        states = self.decoder_stack(
            self.embed_at_positions(target, p.target_embedding), memory, p.decoder, mask=mask, memory_mask=row_mask
        )
        return self.distribution(states, p.w, p.b)

    def encode_source(self, x: Numbers, p: EncoderDecoderParameters[Numbers], seen: Numbers) -> Numbers:
        """The memory: the output of the encoder."""
        return self.encoder_stack(x, p.encoder, mask=seen)

    def embed_at_positions(self, tokens: Numbers, table: Numbers) -> Numbers:
        """Embeddings times √d, plus sinusoidal positions."""
        x = self.embed(tokens, table)
        n, d = x.shape[-2:]
        return self.add_positions(self.scale_embeddings(x), self.sinusoidal_positional_encoding(n, d).astype(x.dtype))

    def scale_embeddings(self, x: Numbers) -> Numbers:
        """x times √d."""
        return x * np.sqrt(x.dtype.type(x.shape[-1]))

    def distribution(self, states: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Probabilities of the next tokens."""
        return self.output_distribution(states, w, b)

    def decoder_only(
        self, tokens: Numbers, parameters: LanguageModelParameters[Numbers], *, mask: Numbers = None
    ) -> Numbers:
        """Token probabilities by an encoder with a causal mask."""
        n = tokens.shape[-1]
        return self.language_model(tokens, parameters, self.join_causal_mask(mask, n))

    def join_causal_mask(self, mask: Numbers, n: int) -> Numbers:
        """The causal mask joined with ``mask``."""
        return self.attendable(mask, True, n, n)

    def encoder_only(
        self, tokens: Numbers, parameters: LanguageModelParameters[Numbers], *, mask: Numbers = None
    ) -> Numbers:
        """Token probabilities by an encoder without a causal mask."""
        return self.language_model(tokens, parameters, mask)

    def language_model(self, tokens: Numbers, p: LanguageModelParameters[Numbers], mask: Numbers) -> Numbers:
        """Embeddings, learned positions, layers and output."""
        x = self.add_positions(self.embed(tokens, p.embedding), self.learned_positions(p.positions, tokens.shape[-1]))
        return self.distribution(self.encoder_stack(x, p.layers, mask=mask), p.w, p.b)

    def residual(
        self, x: Numbers, sublayer: Callable[[Numbers], Numbers], p: LayerNormParameters[Numbers], norm: str
    ) -> Numbers:
        """A sublayer with residual connection and layer norm; ``ValueError`` for an unknown ``norm``."""
        if norm not in ("post", "pre"):
            raise ValueError(f"norm: expected 'post' or 'pre'; got {norm!r}")
        if norm == "pre":
            return x + sublayer(self.layer_norm(x, p))
        return self.layer_norm(x + sublayer(x), p)

    def layer_norm(self, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5) -> Numbers:
        """Mean 0 and variance v/(v + ε), then gain and bias."""
        p = parameters
        centred = x - np.mean(x, axis=-1, keepdims=True)
        variance = self.variance(centred)
        return p.gain * centred / np.sqrt(variance + x.dtype.type(self.epsilon(epsilon))) + p.bias

    def variance(self, centred: Numbers) -> Numbers:
        """The mean square of every row."""
        return np.mean(centred * centred, axis=-1, keepdims=True)

    def rms_norm(self, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
        """Rows divided by their root mean square, times the factor."""
        return self.rms_factor(weight) * (x / self.root_mean_square(x, epsilon))

    def add_rms_norm(
        self, x: Numbers, residual: Numbers, weight: Numbers, *, epsilon: float = 1e-6
    ) -> tuple[Numbers, Numbers]:
        """RMS normalization of the sum, and the sum."""
        total = x + residual
        return self.rms_norm(total, weight, epsilon=epsilon), total

    def rms_factor(self, weight: Numbers) -> Numbers:
        """The factor of RMS normalization, with 1 more if ``rms_weight`` says so."""
        return weight if choice("rms_weight") == "as-given" else weight + 1

    def root_mean_square(self, x: Numbers, epsilon: float) -> Numbers:
        """√(s + ε) of every row, s being the mean square."""
        return np.sqrt(self.variance(x) + x.dtype.type(epsilon))

    def epsilon(self, epsilon: float = 1e-5) -> float:
        """The constant ε added to the variance."""
        return epsilon

    def feed_forward(self, x: Numbers, parameters: FeedForwardParameters[Numbers]) -> Numbers:
        """Perceptron with one hidden layer on every position."""
        p, rows = parameters, x[..., None, :]
        hidden = self.relu(self.project(rows, p.w_1) + p.b_1)
        return (self.project(hidden, p.w_2) + p.b_2)[..., 0, :]

    def relu(self, x: Numbers) -> Numbers:
        """ReLU."""
        return np.maximum(x, x.dtype.type(0))

    def gelu(self, x: Numbers) -> Numbers:
        """x times the probability that a normal variable is below it."""
        return x * self.normal_probability(x)

    def normal_probability(self, x: Numbers) -> Numbers:
        """Φ(x), by erf or by tanh as ``gelu_form`` says."""
        return self.probability_by_erf(x) if choice("gelu_form") == "erf" else self.probability_by_tanh(x)

    def probability_by_erf(self, x: Numbers) -> Numbers:
        """(1 + erf(x/√2))/2."""
        real = x.dtype.type
        return real(0.5) * (1 + self.erf(x * real(np.sqrt(0.5))))

    def probability_by_tanh(self, x: Numbers) -> Numbers:
        """(1 + tanh(√(2/π) (x + 0.044715 x³)))/2."""
        real = x.dtype.type
        return real(0.5) * (1 + np.tanh(self.tanh_argument(x)))

    def tanh_argument(self, x: Numbers) -> Numbers:
        """√(2/π) (x + 0.044715 x³)."""
        real = x.dtype.type
        return real(np.sqrt(2 / np.pi)) * (x + real(0.044715) * (x * x * x))

    def erf(self, x: Numbers) -> Numbers:
        """The error function: a Fourier series of period 16, exact within ±7."""
        real = x.dtype.type
        bounded = np.minimum(np.maximum(x, real(-7)), real(7))
        step = np.pi / 16
        total = bounded * real(step)
        for n in range(1, 40):
            total = total + np.sin(bounded * real(2 * n * step)) * real(np.exp(-((n * step) ** 2)) / n)
        return total * real(2 / np.pi)

    def gated_feed_forward(self, x: Numbers, parameters: GatedFeedForwardParameters[Numbers]) -> Numbers:
        """Down-projection of the gated hidden units."""
        p, rows = parameters, x[..., None, :]
        hidden = self.gated_units(self.project(rows, p.w_gate), self.project(rows, p.w_up))
        return self.project(hidden, p.w_down)[..., 0, :]

    def gated_units(self, gate: Numbers, up: Numbers) -> Numbers:
        """The up-projection times silu of the gate."""
        return self.silu(gate) * up

    def silu(self, x: Numbers) -> Numbers:
        """x times the logistic function."""
        half = x.dtype.type(0.5)
        return x * (half * (1 + np.tanh(half * x)))
