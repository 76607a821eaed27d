"""What a model of these examples can do."""

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
    """The tokens (count, steps) that are most probable one by one; after its end, a target has ends alone.

    ``following`` takes the tokens so far, from the first end on, and a state; it gives scores of the next tokens
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
    """From a source to the tokens of its target; ``steps`` is the most tokens that it spells."""

    @abstractmethod
    def log_probabilities(self, pairs: Pairs) -> Tensor:
        """Of every token (count, steps, vocabulary), where the target's tokens before it are given."""

    @abstractmethod
    def greedy(self, pairs: Pairs, steps: int) -> Tensor:
        """The tokens (count, steps) that are most probable one by one."""

    @abstractmethod
    def greedy_uncached(self, pairs: Pairs, steps: int) -> Tensor:
        """The same, with nothing kept from one step to the next."""

    @abstractmethod
    def beam(self, pairs: Pairs, steps: int, beams: int) -> Tensor:
        """The tokens (count, steps) that are most probable together, as far as so many hypotheses can tell."""

    @abstractmethod
    def attention(self, pairs: Pairs) -> Tensor:
        """The weights (count, steps, longest source) with which every step attends to the source."""
