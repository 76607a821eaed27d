"""What a model of these examples can do."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from examples.tasks import Pairs


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
