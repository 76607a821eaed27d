"""A recurrent encoder and decoder with Bahdanau's attention."""

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch import additive_scores, beam_decode, greedy_decode, softmax
from attnspec.backends.pytorch.nn import RNN, BahdanauDecoder
from examples.model import Model, most_probable
from examples.tasks import EOS, Pairs, Task


class Bahdanau(Model):
    """Bidirectional encoder, and a decoder that attends to the encoder's annotations at every step."""

    def __init__(self, task: Task, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(task.source_vocabulary), size)
        self.encoder = RNN(size, size, bidirectional=True)
        self.first_state = nn.Linear(size, size)
        self.decoder = BahdanauDecoder(len(task.target_vocabulary), size, size, 2 * size, size)

    def encoded(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Return annotations (count, longest source, 2·size), their mask, and the decoder's first state."""
        annotations, final = self.encoder(self.embedding(pairs.sources), lengths=pairs.lengths)
        # final[:, 1] is the state of the backward network, which reads the first character last.
        return annotations, pairs.source_mask, self.first_state(final[:, 1]).tanh()

    def log_probabilities(self, pairs: Pairs) -> Tensor:
        """Return log-probabilities of all tokens in one pass, by teacher forcing."""
        annotations, source_mask, state = self.encoded(pairs)
        logarithms, _ = self.decoder(pairs.previous_tokens, state, annotations, mask=source_mask)
        return logarithms

    def greedy(self, pairs: Pairs, steps: int) -> Tensor:
        """Decode by ``greedy_decode``, which projects the annotations once."""
        annotations, source_mask, state = self.encoded(pairs)
        first = torch.full_like(pairs.lengths, EOS)
        return greedy_decode(first, state, annotations, self.decoder.record(), steps, EOS, mask=source_mask)[0]

    def greedy_uncached(self, pairs: Pairs, steps: int) -> Tensor:
        """Decode greedily by ``decoder_step``, which projects the annotations at every step."""
        annotations, source_mask, state = self.encoded(pairs)

        def following(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            return self.decoder.step(tokens[:, -1], state, annotations, mask=source_mask)

        return most_probable(following, state, len(pairs), steps)

    def beam(self, pairs: Pairs, steps: int, beams: int) -> Tensor:
        """Decode by ``beam_decode``."""
        annotations, source_mask, state = self.encoded(pairs)
        first = torch.full_like(pairs.lengths, EOS)
        return beam_decode(first, state, annotations, self.decoder.record(), steps, EOS, beams, mask=source_mask)[0]

    def attention(self, pairs: Pairs) -> Tensor:
        """Return the softmax of the scores between the state before each step and the annotations."""
        annotations, source_mask, state = self.encoded(pairs)
        weights = []
        for token in pairs.previous_tokens.unbind(-1):
            scores = additive_scores(state[:, None], annotations, self.decoder.w_q, self.decoder.w_k, self.decoder.w_v)
            weights.append(softmax(scores, mask=source_mask[:, None]))
            _, state = self.decoder.step(token, state, annotations, mask=source_mask)
        return torch.cat(weights, -2)
