"""A backend's declaration, read once and validated."""

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import ModuleType
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
    not declare. ``on_device`` maps attributes that the backend's ``on_device`` replaces to the kind of device.
    ``place`` says where in the source further attributes belong.
    """

    name: str
    operations: tuple[str, ...]
    limits: Limits
    semantics: DeclaredSemantics
    precision: DeclaredPrecision
    differentiable: bool
    notes: Mapping[str, str]
    origin: str = ""
    on_device: Mapping[str, str] = field(default_factory=dict)
    place: str = field(default="into the backend", compare=False)
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
        if callable(getattr(backend, "vjp", None)):
            _demand_argument_names(backend, operations)
        notes = getattr(backend, "notes", None) or {}
        if not isinstance(notes, Mapping):
            raise ValueError(f"notes: expected a mapping of strings; got {type(notes).__name__}")
        limits = Limits.of(getattr(backend, "limits", None))
        _demand_option_names(backend, operations, limits)
        kind = limits.chosen_device(device).partition(":")[0]
        on_device = _declared_on(backend, kind)
        declared = {name: getattr(backend, name, None) for name in BY_DEVICE} | on_device
        known_features = {feature for o in OPERATIONS.values() for feature in o.features}
        _demand_known("limits features", "names of features", limits.features or (), known_features)
        known_choices = {feature for feature in known_features if "=" in feature}
        _demand_known("limits always", "choices of an argument", limits.always, known_choices)
        _demand_known("limits dtypes_by_operation", "names of operations", dict(limits.dtypes_by_operation), OPERATIONS)
        for operation, formats in dict(limits.operand_formats).items():
            _demand_known("limits operand_formats", "names of operations", (operation,), OPERATIONS)
            arguments = {leaf.path for leaf in OPERATIONS[operation].floats}
            for by_argument in formats:
                named = () if isinstance(by_argument, str) else dict(by_argument)
                _demand_known(f"limits operand_formats: {operation}", "names of arguments", named, arguments)
        _demand_known("limits gradients", "names of operations", limits.gradients or (), OPERATIONS)
        semantics = DeclaredSemantics.of(declared["semantics"], OPERATIONS)
        semantics.demand_read([OPERATIONS[name] for name in operations], OPERATIONS)
        return cls(
            printable(name),
            operations,
            limits,
            semantics,
            DeclaredPrecision.of(declared["precision"], OPERATIONS),
            callable(getattr(backend, "vjp", None)),
            _unused_devices(backend, limits) | {printable(str(k)): printable(str(v)) for k, v in notes.items()},
            origin,
            dict.fromkeys(on_device, kind),
            place_of_attributes(backend),
        )


def place_of_attributes(backend: Any) -> str:
    """Return where a backend's attributes belong in its source: text after “paste them”."""
    if isinstance(backend, ModuleType):
        return "at the end of the module"
    if isinstance(place := getattr(backend, "place_of_attributes", None), str):
        return printable(place)
    kind = backend if isinstance(backend, type) else type(backend)
    if kind.__module__ in ("builtins", "types"):
        return "into the backend"
    return f"into the body of class {printable(kind.__name__)}"


def _parameters(backend: Any, operation: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of an operation's function; none if it is not written in Python."""
    try:
        return inspect.signature(getattr(backend, operation)).parameters
    except (ValueError, TypeError):
        return {}


def _demand_argument_names(backend: Any, operations: Iterable[str]) -> None:
    """Raise ``ValueError`` for an argument whose name is not the Protocol's.

    ``vjp`` passes arguments by name.
    """
    for operation in operations:
        parameters = _parameters(backend, operation)
        kinds = {p.kind for p in parameters.values()}
        if not kinds or kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue
        own = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        described = OPERATIONS[operation]
        expected = [name for name in described.call.names if name not in described.keyword_only]
        for position, name in enumerate(expected):
            if name not in parameters:
                got = own[position] if position < len(own) else "no argument"
                raise ValueError(
                    f"{operation}: expected an argument {name!r}, since vjp passes arguments by name; got {got!r}. "
                    f"The signature is ({', '.join(expected)})"
                )


def _demand_option_names(backend: Any, operations: Iterable[str], limits: Limits) -> None:
    """Raise ``ValueError`` for an option whose name only contains the Protocol's, as in PyTorch.

    A backend that is judged without the option declares so.
    """
    for operation in operations:
        parameters = _parameters(backend, operation)
        for option in sorted(OPERATIONS[operation].keyword_only - set(parameters)):
            similar = [name for name in parameters if option in name.split("_")]
            if similar and getattr(limits, option, limits.has(option)):
                declaration = f"{option} = False" if hasattr(limits, option) else f"features without {option!r}"
                raise ValueError(
                    f"{operation}: expected an option {option!r}; got {similar[0]!r}. Rename it, or declare limits "
                    f"{declaration} if it means something else"
                )


def _demand_known(field: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            near = ", ".join(get_close_matches(str(name), sorted(known), cutoff=0.0))
            raise ValueError(f"{field}: expected {kind}, such as {near}; got {name!r}")


def _declared_on(backend: Any, device: str) -> dict[str, Any]:
    """Attributes that ``on_device`` has for a kind of device: ``semantics``, ``precision``, or both."""
    on_device = getattr(backend, "on_device", None) or {}
    if not isinstance(on_device, Mapping) or not all(isinstance(x, Mapping) for x in on_device.values()):
        raise ValueError(f"on_device: expected a mapping of devices to declarations; got {on_device!r}")
    for kind, declared in on_device.items():
        if unknown := set(declared) - set(BY_DEVICE):
            raise ValueError(f"on_device {kind}: expected some of {', '.join(BY_DEVICE)}; got {min(unknown)!r}")
    return dict(on_device.get(device, {}))


def _unused_devices(backend: Any, limits: Limits) -> dict[str, str]:
    """Notes on declarations for undeclared devices, which this machine may lack."""
    absent = [str(kind) for kind in getattr(backend, "on_device", None) or {} if kind not in limits.devices]
    declared = ", ".join(limits.devices)
    return {f"on_device {printable(x)}": f"not used, because the limits declare {declared}" for x in absent}
