"""Two text-to-text tasks with generated data: reversing words, and writing dates in ISO 8601."""

import calendar
import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase, digits

import torch
from torch import Tensor
from torch.nn import functional

STOP, EOS = "\n", 0
"""Character <eos> and its token. It begins and ends every target, and pads sources."""


@dataclass(frozen=True)
class Pairs:
    """Sources (count, longest source), their lengths, and targets with <eos> (count, longest target + 1)."""

    sources: Tensor
    lengths: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def source_mask(self) -> Tensor:
        """Mask (count, longest source): True for characters, False for padding."""
        return torch.arange(self.sources.shape[1]) < self.lengths[:, None]

    @property
    def previous_tokens(self) -> Tensor:
        """Token before each token of the targets; <eos> before the first."""
        return functional.pad(self.targets[:, :-1], (1, 0), value=EOS)

    @property
    def target_mask(self) -> Tensor:
        """Mask (count, longest target + 1): True up to the first <eos>, included."""
        return (self.previous_tokens != EOS) | (torch.arange(self.targets.shape[1]) == 0)

    def at(self, indices: Tensor) -> "Pairs":
        """Select pairs by index."""
        return Pairs(self.sources[indices], self.lengths[indices], self.targets[indices])


@dataclass(frozen=True)
class Task:
    """A function from text to text, to be learned from random examples."""

    name: str
    source_characters: str
    target_characters: str
    longest_source: int
    longest_target: int
    draw: Callable[[random.Random], tuple[str, str]]
    aligned: Callable[[Tensor, Tensor], Tensor] | None = None
    """Function of source length and step: position in the source of that step's character, negative after the last."""

    @cached_property
    def source_vocabulary(self) -> str:
        """Characters of sources; the index of a character is its token."""
        return STOP + self.source_characters

    @cached_property
    def target_vocabulary(self) -> str:
        """Characters of targets; the index of a character is its token."""
        return STOP + self.target_characters

    def split(self, training: int, held_out: int, seed: int) -> tuple[Pairs, Pairs]:
        """Pairs for training and held-out pairs; they share no source."""
        generator, targets = random.Random(seed), dict[str, str]()
        while len(targets) < training + held_out:
            source, target = self.draw(generator)
            targets[source] = target
        pairs = list(targets.items())
        return self.encoded(pairs[:training]), self.encoded(pairs[training:])

    def encoded(self, pairs: Sequence[tuple[str, str]]) -> Pairs:
        """Encode texts as tokens; ``ValueError`` for a source of wrong length or characters."""
        sources = [source for source, _ in pairs]
        for source in sources:
            if not 0 < len(source) <= self.longest_source or set(source) - set(self.source_characters):
                raise ValueError(
                    f"{self.name}: expected 1 to {self.longest_source} of the characters "
                    f"{self.source_characters!r}; got {source!r}"
                )
        return Pairs(
            _tokens(sources, self.source_vocabulary, self.longest_source),
            torch.tensor([len(source) for source in sources]),
            _tokens([target for _, target in pairs], self.target_vocabulary, self.longest_target + 1),
        )

    def text(self, tokens: Sequence[int]) -> str:
        """Text of a target's tokens up to <eos>."""
        return "".join(self.target_vocabulary[token] for token in tokens).split(STOP)[0]


def _tokens(texts: Sequence[str], vocabulary: str, width: int) -> Tensor:
    return torch.tensor([[vocabulary.index(c) for c in text.ljust(width, STOP)] for text in texts])


def _reversed_word(generator: random.Random) -> tuple[str, str]:
    word = "".join(generator.choices(ascii_lowercase, k=generator.randint(4, 12)))
    return word, word[::-1]


def _date(generator: random.Random) -> tuple[str, str]:
    first, last = datetime.date(1900, 1, 1).toordinal(), datetime.date(2099, 12, 31).toordinal()
    date = datetime.date.fromordinal(generator.randint(first, last))
    month, weekday = calendar.month_name[date.month].lower(), calendar.day_name[date.weekday()].lower()
    written = generator.choice(
        (
            f"{date.day} {month} {date.year}",
            f"{date.day} {month[:3]} {date.year}",
            f"{month} {date.day}, {date.year}",
            f"{month[:3]} {date.day}, {date.year}",
            f"{weekday}, {date.day} {month} {date.year}",
            f"{weekday[:3]} {month[:3]} {date.day} {date.year}",
            f"{date.day}.{date.month}.{date.year}",
            f"{date.day:02}/{date.month:02}/{date.year}",
        )
    )
    return written, date.isoformat()


# The numbers of a Task are the longest source and the longest target, in characters.
TASKS = {
    task.name: task
    for task in (
        Task("reversing", ascii_lowercase, ascii_lowercase, 12, 12, _reversed_word, lambda length, t: length - 1 - t),
        Task("dates", ascii_lowercase + digits + " ,./", digits + "-", len("wednesday, 30 september 2026"), 10, _date),
    )
}
