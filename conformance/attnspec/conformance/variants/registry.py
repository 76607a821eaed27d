"""Honest variants: correct backends that round differently or deviate as declared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Altered, Registry, names_of


@dataclass(frozen=True)
class Variant(Altered):
    """A correct backend that must pass all laws of its operations in each of its dtypes.

    ``lacking`` returns why this system cannot run it, or an empty string.
    """

    lacking: Callable[[], str] = str


VARIANTS: Registry[Variant] = Registry("variants")
"""All honest variants by name; filled by the import of :mod:`attnspec.conformance.variants`."""


def variant(
    name: str, *, operations: Sequence[object], register: bool = True, **more: Any
) -> Callable[[Alteration], Variant]:
    """Decorate a subclass of the correct formulas or library as a variant; ``ValueError`` for a name in use.

    ``operations`` are Protocols.
    """

    def made(honest: Alteration) -> Variant:
        found = Variant(name, names_of(operations), honest, **more)
        if register:
            VARIANTS.add(found)
        return found

    return made
