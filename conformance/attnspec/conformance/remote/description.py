"""A backend's declarations as JSON, written by the process that imports it.

``python -m attnspec.conformance.remote.description NAME DEVICE ANSWER`` imports the backend and writes its contract, or
the error, to the file descriptor ANSWER. It then exits without waiting for processes that the backend left running, or
for its exit handlers.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.foreign_calls import Raised, call_safely, printable
from attnspec.conformance.remote.command import CommandBackend
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.processes import die_with_parent
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DeclaredPrecision
from attnspec.spec.contract.semantics import DeclaredSemantics

DECLARED = ("name", "operations", "limits", "semantics", "precision", "differentiable", "notes", "on_device", "place")
"""Keys of a described contract."""


def describe(backend: Any, name: str, device: str) -> dict[str, Any]:
    """Return a backend's contract as plain JSON; :class:`BackendError` if it cannot use the device."""
    contract = contract_of(backend, name, device)
    device = contract.limits.chosen_device(device)
    if not runs_on(contract, device):
        devices = ", ".join(contract.limits.devices)
        declaration = contract.limits.declaration_with("devices", device.partition(":")[0])
        message = f"device: expected one of {devices}; got {device!r}; declare {declaration} to try it"
        raise BackendError(f"backend {name!r}: {message}")
    convert = getattr(backend, "from_numpy", None)
    if convert is not None:
        moved = call_safely(lambda: convert(np.zeros(1, np.float32), device=device))
        if isinstance(moved, Raised):
            raise BackendError(f"backend {name!r}: from_numpy(…, device={device!r}) raised {moved.message}")
    return described(contract)


def runs_on(contract: Contract, device: str) -> bool:
    """Return whether a backend declares this device."""
    return device.partition(":")[0] in contract.limits.devices


def described(contract: Contract) -> dict[str, Any]:
    """Return a contract as plain JSON."""
    return {
        "name": contract.name,
        "operations": list(contract.operations),
        "limits": asdict(contract.limits),
        "semantics": {
            "default": asdict(contract.semantics.default),
            "per_operation": {k: asdict(v) for k, v in contract.semantics.per_operation.items()},
        },
        "precision": {
            "default": dict(contract.precision.default),
            "per_operation": {k: dict(v) for k, v in contract.precision.per_operation.items()},
        },
        "differentiable": contract.differentiable,
        "notes": dict(contract.notes),
        "on_device": dict(contract.on_device),
        "place": contract.place,
    }


def contract_from(description: Mapping[str, Any], origin: str) -> Contract:
    """Return the contract that :func:`describe` wrote; :class:`BackendError` for anything else.

    The backend runs in the process that sends the description, and may send anything.
    """
    try:
        return _contract(description, origin)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackendError(
            f"backend {origin!r}: expected its declaration from the process that imports it; "
            f"got another answer ({type(error).__name__}: {printable(str(error))})"
        ) from error


def _contract(description: Mapping[str, Any], origin: str) -> Contract:
    name, operations, limits, semantics, precision, differentiable, notes, on_device, place = (
        description[key] for key in DECLARED
    )
    if not isinstance(name, str) or not isinstance(differentiable, bool) or not isinstance(notes, Mapping):
        raise TypeError("expected a name, whether it is differentiable, and notes")
    return Contract(
        printable(name),
        tuple(OPERATIONS[operation].name for operation in operations),
        Limits.of({k: tuple(v) if isinstance(v, list) else v for k, v in limits.items()}),
        DeclaredSemantics.of({**semantics["per_operation"], "*": semantics["default"]}, OPERATIONS),
        DeclaredPrecision.of({**precision["per_operation"], "*": precision["default"]}, OPERATIONS),
        differentiable,
        {printable(str(k)): printable(str(v)) for k, v in notes.items()},
        origin,
        {printable(str(k)): printable(str(v)) for k, v in on_device.items()},
        printable(str(place)),
    )


def main() -> None:
    """Describe the backend named on the command line."""
    die_with_parent()
    name, device, number = sys.argv[1:4]
    # Processes that the backend starts must not hold the pipe open.
    os.set_inheritable(int(number), False)
    try:
        backend = load(name)
        answer = describe(backend, name, device)
        if isinstance(backend, CommandBackend):
            backend.close()
    except BackendError as error:
        answer = {"error": str(error)}
    with open(int(number), "w", encoding="utf-8") as pipe:
        json.dump(answer, pipe)
    os._exit(0)


if __name__ == "__main__":
    main()
