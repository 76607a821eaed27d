"""A small transformer, encoder and decoder, with a cache of earlier keys and values."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnspec.backends.pytorch import (
    cached_decoder_step,
    decoder_stack,
    encoder_decoder,
    layer_norm,
    multi_head_attention,
    scaled_dot_scores,
    sinusoidal_positional_encoding,
    softmax,
)
from attnspec.backends.pytorch.nn import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from attnspec.spec import EncoderDecoderParameters, KeyValueCache
from examples.model import Model, most_probable
from examples.tasks import EOS, Pairs, Task

Caches = list[KeyValueCache[Tensor]]
"""Keys and values of the positions so far, for each layer of the decoder."""


class Transformer(Model):
    """Embeddings plus sinusoids, encoder, decoder, and a linear layer for the next token."""

    def __init__(self, task: Task, size: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.source = nn.Embedding(len(task.source_vocabulary), size)
        self.target = nn.Embedding(len(task.target_vocabulary), size)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=size**-0.5)
        self.encoder = TransformerEncoder(TransformerEncoderLayer(size, heads, 2 * size), layers)
        self.decoder = TransformerDecoder(TransformerDecoderLayer(size, heads, 2 * size), layers)
        for stack in (self.encoder, self.decoder):
            stack.reset_parameters()
        self.output = nn.Linear(size, len(task.target_vocabulary))
        self.positions: Tensor
        longest = max(task.longest_source, task.longest_target + 1)
        self.register_buffer("positions", sinusoidal_positional_encoding(longest, size).float(), persistent=False)

    def placed(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        """Return embeddings of tokens (count, n) times √d, plus the sinusoids of their positions."""
        embedded: Tensor = table(tokens) * math.sqrt(self.size) + self.positions[: tokens.shape[-1]]
        return embedded

    def memory(self, pairs: Pairs) -> Tensor:
        """Encoder output for the sources (count, longest source, size)."""
        return self.encoder(self.placed(pairs.sources, self.source), mask=pairs.source_mask[:, None])

    def log_probabilities(self, pairs: Pairs) -> Tensor:
        """Log-probabilities of all tokens in one pass, since the decoder is causal."""
        rows = self.placed(pairs.previous_tokens, self.target)
        states = self.decoder(rows, self.memory(pairs), memory_mask=pairs.source_mask[:, None])
        return functional.log_softmax(self.output(states), -1)

    def step(self, tokens: Tensor, caches: Caches, memory: Tensor, source_mask: Tensor) -> tuple[Tensor, Caches]:
        """Return log-probabilities after the latest tokens (count), and caches that include these.

        The caches hold all earlier positions, so their length is the position of the latest tokens.
        """
        x = self.target(tokens) * math.sqrt(self.size) + self.positions[caches[0].key.shape[-2]]
        longer = []
        for cache, layer in zip(caches, self.decoder.record(), strict=True):
            x, cache = cached_decoder_step(x, cache, memory, layer, memory_mask=source_mask)
            longer.append(cache)
        return functional.log_softmax(self.output(x), -1), longer

    def empty(self, count: int) -> Caches:
        """Caches without positions."""
        nothing = torch.empty(count, self.heads, 0, self.size // self.heads)
        return [KeyValueCache(nothing, nothing) for _ in self.decoder.record()]

    def greedy(self, pairs: Pairs, steps: int) -> Tensor:
        """Decode greedily; each step computes one token and takes earlier positions from the caches."""
        memory = self.memory(pairs)

        def following(tokens: Tensor, caches: Caches) -> tuple[Tensor, Caches]:
            return self.step(tokens[:, -1], caches, memory, pairs.source_mask)

        return most_probable(following, self.empty(len(pairs)), len(pairs), steps)

    def greedy_uncached(self, pairs: Pairs, steps: int) -> Tensor:
        """Decode greedily without a cache, by ``encoder_decoder`` on all tokens so far at each step."""
        weights = EncoderDecoderParameters(
            self.source.weight,
            self.target.weight,
            self.encoder.record(),
            self.decoder.record(),
            self.output.weight,
            self.output.bias,
        )

        def following(tokens: Tensor, _: None) -> tuple[Tensor, None]:
            return encoder_decoder(pairs.sources, tokens, weights, source_mask=pairs.source_mask)[:, -1], None

        return most_probable(following, None, len(pairs), steps)

    def beam(self, pairs: Pairs, steps: int, beams: int) -> Tensor:
        """Beam search: keep the ``beams`` most probable extensions per source."""
        count, vocabulary = len(pairs), self.target.num_embeddings
        memory, source_mask = (x.repeat_interleave(beams, 0) for x in (self.memory(pairs), pairs.source_mask))
        caches, tokens = self.empty(count * beams), torch.full((count * beams, 1), EOS)  # <eos> also begins targets
        # All beams of a source begin alike: if more than the first were extended, they would stay copies of it.
        scores = torch.full((count, beams), -math.inf).index_fill(1, torch.tensor([0]), 0.0)
        ended = torch.zeros(count * beams, dtype=torch.bool)
        only_eos = torch.full((vocabulary,), -math.inf).index_fill(0, torch.tensor([EOS]), 0.0)
        for _ in range(steps):
            logarithms, caches = self.step(tokens[:, -1], caches, memory, source_mask)
            candidates = scores[..., None] + logarithms.where(~ended[:, None], only_eos).view(count, beams, vocabulary)
            scores, best = candidates.flatten(1).topk(beams, -1)
            parents = (torch.arange(count)[:, None] * beams + best // vocabulary).flatten()
            following = (best % vocabulary).flatten()
            tokens = torch.cat([tokens[parents], following[:, None]], -1)
            caches = [KeyValueCache(cache.key[parents], cache.value[parents]) for cache in caches]
            ended = following == EOS
        return tokens.view(count, beams, -1)[:, 0, 1:]

    def attention(self, pairs: Pairs) -> Tensor:
        """Weights of the last layer's cross-attention, averaged over its heads."""
        memory, mask = self.memory(pairs), pairs.source_mask[:, None]
        *earlier, last = self.decoder.record()
        x = decoder_stack(self.placed(pairs.previous_tokens, self.target), memory, tuple(earlier), memory_mask=mask)
        p = last.attention
        attended = multi_head_attention(x, x, x, p.w_q, p.w_k, p.w_v, p.w_o, causal=True)
        x = layer_norm(x + attended, last.attention_norm)
        query, key = (
            (rows[:, None] @ w.mT) for rows, w in ((x, last.cross_attention.w_q), (memory, last.cross_attention.w_k))
        )
        return softmax(scaled_dot_scores(query, key), mask=mask[:, None]).mean(1)
