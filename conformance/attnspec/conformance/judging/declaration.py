"""A backend's declaration, read once and validated."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.judging.foreign_calls import printable
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DeclaredPrecision
from attnspec.spec.contract.semantics import DeclaredSemantics


@dataclass(frozen=True)
class Contract:
    """A backend's validated declaration. ``origin`` is the name by which snippets load the backend."""

    name: str
    operations: tuple[str, ...]
    limits: Limits
    semantics: DeclaredSemantics
    precision: DeclaredPrecision
    differentiable: bool
    notes: Mapping[str, str]
    origin: str = ""

    @classmethod
    def of(cls, backend: Any, origin: str = "") -> "Contract":
        """Read a backend's declaration; ``ValueError`` says what was expected and what came."""
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"name: expected a text; got {name!r}; add one, such as name = 'my-kernels'")
        operations = tuple(
            o.name for o in OPERATIONS.values() if not o.reference_only and getattr(backend, o.name, None) is not None
        )
        for operation in operations:
            if not callable(getattr(backend, operation)):
                raise ValueError(f"{operation}: expected a function; got {type(getattr(backend, operation)).__name__}")
        notes = getattr(backend, "notes", None) or {}
        if not isinstance(notes, Mapping):
            raise ValueError(f"notes: expected a mapping of texts; got {type(notes).__name__}")
        limits = Limits.of(getattr(backend, "limits", None))
        known_features = sorted({feature for o in OPERATIONS.values() for feature in o.features})
        for feature in limits.features or ():
            if feature not in known_features:
                raise ValueError(f"limits features: expected among {', '.join(known_features)}; got {feature!r}")
        fields = {"dtypes_by_operation": dict(limits.dtypes_by_operation), "gradients": limits.gradients or ()}
        for field, operation in ((field, operation) for field, names in fields.items() for operation in names):
            if operation not in OPERATIONS:
                raise ValueError(f"limits {field}: expected names of operations; got {operation!r}")
        return cls(
            printable(name),
            operations,
            limits,
            DeclaredSemantics.of(getattr(backend, "semantics", None), OPERATIONS),
            DeclaredPrecision.of(getattr(backend, "precision", None), OPERATIONS),
            callable(getattr(backend, "vjp", None)),
            _misspelt(backend) | {printable(str(k)): printable(str(v)) for k, v in notes.items()},
            origin,
        )


def _misspelt(backend: Any) -> dict[str, str]:
    """Notes on public functions named nearly like an operation, which no law tries."""
    missing = [name for name in OPERATIONS if not hasattr(backend, name)]
    notes = {}
    for name in dir(backend):
        near = [] if name.startswith("_") else difflib.get_close_matches(name, missing, 1, 0.9)
        if near and name not in OPERATIONS and callable(getattr(backend, name, None)):
            notes[printable(name)] = f"not tried, because no operation has this name; the nearest is {near[0]}"
    return notes
