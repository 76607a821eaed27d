"""A backend's declaration, read once and validated."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from attnspec.conformance.judging.foreign_calls import printable
from attnspec.conformance.judging.health import Health
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DeclaredPrecision
from attnspec.spec.contract.semantics import DeclaredSemantics

BY_DEVICE = "semantics", "precision"
"""Declarations that ``on_device`` may replace for a kind of device."""


@dataclass(frozen=True)
class Contract:
    """A backend's validated declaration.

    ``origin`` is the name by which snippets load the backend. ``health`` is no declaration: it is here because all that
    call the backend share it. ``assumed`` are choices in ``semantics`` that the backend was observed to make and does
    not declare.
    """

    name: str
    operations: tuple[str, ...]
    limits: Limits
    semantics: DeclaredSemantics
    precision: DeclaredPrecision
    differentiable: bool
    notes: Mapping[str, str]
    origin: str = ""
    assumed: Mapping[str, Any] = field(default_factory=dict, compare=False)
    health: Health = field(default_factory=Health, compare=False, repr=False)

    @classmethod
    def of(cls, backend: Any, origin: str = "", device: str = "cpu") -> "Contract":
        """Read a backend's declaration for a device; ``ValueError`` says what was expected and what came."""
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"name: expected a non-empty string; got {name!r}; add one, such as name = 'my-kernels'")
        operations = tuple(
            o.name for o in OPERATIONS.values() if not o.reference_only and getattr(backend, o.name, None) is not None
        )
        for operation in operations:
            if not callable(getattr(backend, operation)):
                raise ValueError(f"{operation}: expected a function; got {type(getattr(backend, operation)).__name__}")
        notes = getattr(backend, "notes", None) or {}
        if not isinstance(notes, Mapping):
            raise ValueError(f"notes: expected a mapping of strings; got {type(notes).__name__}")
        limits = Limits.of(getattr(backend, "limits", None))
        on_device = _declared_on(backend, limits.chosen_device(device))
        known_features = {feature for o in OPERATIONS.values() for feature in o.features}
        _demand_known("limits features", "names of features", limits.features or (), known_features)
        _demand_known("limits dtypes_by_operation", "names of operations", dict(limits.dtypes_by_operation), OPERATIONS)
        _demand_known("limits gradients", "names of operations", limits.gradients or (), OPERATIONS)
        return cls(
            printable(name),
            operations,
            limits,
            DeclaredSemantics.of(on_device["semantics"], OPERATIONS),
            DeclaredPrecision.of(on_device["precision"], OPERATIONS),
            callable(getattr(backend, "vjp", None)),
            {printable(str(k)): printable(str(v)) for k, v in notes.items()},
            origin,
        )


def _demand_known(field: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            near = ", ".join(get_close_matches(str(name), sorted(known), cutoff=0.0))
            raise ValueError(f"{field}: expected {kind}, such as {near}; got {name!r}")


def _declared_on(backend: Any, device: str) -> dict[str, Any]:
    """``semantics`` and ``precision``: those of ``on_device`` for this kind of device, else the backend's own."""
    on_device = getattr(backend, "on_device", None) or {}
    if not isinstance(on_device, Mapping) or not all(isinstance(x, Mapping) for x in on_device.values()):
        raise ValueError(f"on_device: expected a mapping of devices to declarations; got {on_device!r}")
    for kind, declared in on_device.items():
        if unknown := set(declared) - set(BY_DEVICE):
            raise ValueError(f"on_device {kind}: expected some of {', '.join(BY_DEVICE)}; got {min(unknown)!r}")
    own = {name: getattr(backend, name, None) for name in BY_DEVICE}
    return own | dict(on_device.get(device.partition(":")[0], {}))
