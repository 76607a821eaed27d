"""Honest variants: correct backends that round differently or deviate as declared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Altered, Registry, names_of


@dataclass(frozen=True)
class Variant(Altered):
    """A correct backend that must pass every law of its operations and dtypes.

    ``lacking`` returns why this system cannot run it, or an empty string; the default, ``str``, returns that.
    """

    lacking: Callable[[], str] = str


VARIANTS: Registry[Variant] = Registry("variants")
"""All honest variants by name; filled by the import of :mod:`attnspec.conformance.variants`."""


def variant(
    name: str, *, operations: Sequence[object], register: bool = True, **more: Any
) -> Callable[[Alteration], Variant]:
    """Decorate a subclass of ``Formulas`` or ``Library`` as a variant; ``ValueError`` for a used name.

    ``Formulas`` has the steps of formulas, ``Library`` what surrounds them. ``operations`` are Protocols. Steps that
    the reverse mode of ``correct.tape`` cannot follow, such as einsum, need ``differentiable=False``.
    """

    def register_variant(honest: Alteration) -> Variant:
        new = Variant(name, names_of(operations), honest, **more)
        if register:
            VARIANTS.add(new)
        return new

    return register_variant
