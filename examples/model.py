"""Base class of the example models, and greedy decoding step by step."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from examples.tasks import EOS, Pairs

State = TypeVar("State")


def most_probable(
    following: Callable[[Tensor, State], tuple[Tensor, State]], state: State, count: int, steps: int
) -> Tensor:
    """Decode greedily: the most probable token at each step (count, steps); <eos> after an <eos>.

    ``following`` takes the tokens so far, beginning with <eos>, and a state. It returns scores of the next tokens
    (count, vocabulary) and the next state.
    """
    tokens = torch.full((count, 1), EOS)
    ended = torch.zeros(count, dtype=torch.bool)
    for _ in range(steps):
        scores, state = following(tokens, state)
        last = scores.argmax(-1).masked_fill(ended, EOS)
        tokens = torch.cat((tokens, last[:, None]), -1)
        ended |= last == EOS
    return tokens[:, 1:]


class Model(nn.Module, ABC):
    """Model that maps a source to at most ``steps`` tokens of its target."""

    @abstractmethod
    def log_probabilities(self, pairs: Pairs) -> Tensor:
        """Log-probabilities of every token (count, steps, vocabulary), given the target's tokens before it."""

    @abstractmethod
    def greedy(self, pairs: Pairs, steps: int) -> Tensor:
        """Most probable token at each step (count, steps)."""

    @abstractmethod
    def greedy_uncached(self, pairs: Pairs, steps: int) -> Tensor:
        """Tokens of greedy decoding, recomputed at every step without a cache."""

    @abstractmethod
    def beam(self, pairs: Pairs, steps: int, beams: int) -> Tensor:
        """Tokens (count, steps) of the most probable of ``beams`` hypotheses."""

    @abstractmethod
    def attention(self, pairs: Pairs) -> Tensor:
        """Weights (count, steps, longest source) of every step's attention to the source."""
