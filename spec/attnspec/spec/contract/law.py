"""Laws, which every correct implementation satisfies, and their registry.

Each law is declared once, in ``attnspec.spec.laws``; ``attnspec.conformance.laws`` checks it in the same chapter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.sources import Citation


@dataclass(frozen=True)
class Law:
    """One law. ``governs`` selects its operations; with ``gradients`` it needs the backend's ``vjp``."""

    id: str
    statement: str
    formula: str
    governs: Callable[[Operation], bool]
    sources: tuple[Citation, ...] = ()
    gradients: bool = False

    @property
    def chapter(self) -> str:
        """Part of the identifier before the dot."""
        return self.id.split(".", 1)[0]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations that the law governs and that backends provide."""
        return tuple(o for o in OPERATIONS.values() if self.concerns(o))

    def concerns(self, operation: Operation) -> bool:
        """True if the law governs an operation of backends. A law of gradients needs a differentiable one."""
        if operation.reference_only or not self.governs(operation):
            return False
        return operation.differentiable or not self.gradients


_LAWS: dict[str, Law] = {}
LAWS: Mapping[str, Law] = MappingProxyType(_LAWS)
"""Every law, by identifier."""


def law(
    identifier: str,
    statement: str,
    *,
    formula: str,
    governs: Callable[[Operation], bool],
    sources: Sequence[Citation] = (),
    gradients: bool = False,
) -> Law:
    """Declare a law; identifiers are ``chapter.name-with-hyphens`` and unique."""
    if identifier in _LAWS:
        raise ValueError(f"law {identifier} is declared twice")
    _LAWS[identifier] = Law(identifier, statement, formula, governs, tuple(sources), gradients)
    return _LAWS[identifier]


def every(operation: Operation) -> bool:
    """Govern every operation."""
    return True


def of(*protocols: object) -> Callable[[Operation], bool]:
    """Govern the operations that these Protocols declare. For laws about particular formulas, not about roles."""
    return lambda operation: operation.protocol in protocols
