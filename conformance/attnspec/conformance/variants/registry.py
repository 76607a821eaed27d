"""What an honest variant is: a correct implementation that rounds differently, or deviates as it declares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Altered, Registry, names_of


@dataclass(frozen=True)
class Variant(Altered):
    """A correct backend, judged by all laws of its operations at each of its dtypes; none may ever fail.

    ``lacking`` says why the system cannot try it, and nothing where it can.
    """

    lacking: Callable[[], str] = str


VARIANTS: Registry[Variant] = Registry("variants")
"""Every honest variant, by name, once :mod:`attnspec.conformance.variants` is imported."""


def variant(
    name: str, *, operations: Sequence[object], register: bool = True, **more: Any
) -> Callable[[Alteration], Variant]:
    """Make a variant of a subclass of the correct formulas or library; ``ValueError`` for a name that is taken.

    ``operations`` are Protocols.
    """

    def made(honest: Alteration) -> Variant:
        found = Variant(name, names_of(operations), honest, **more)
        if register:
            VARIANTS.add(found)
        return found

    return made
