"""A first import of a backend, in a process of its own.

``python -m attnspec.conformance.running.probe NAME DEVICE ANSWER``: the file ANSWER receives the contract, or why there
is none, as JSON. The process ends there and then: what the backend has left running, or would do at an orderly exit, is
not waited for.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attnspec.conformance.judging.foreign_calls import Raised, guarded
from attnspec.conformance.judging.subject import Contract
from attnspec.conformance.running.loading import BackendError, contract_of, load
from attnspec.spec.contract.backend import Limits
from attnspec.spec.contract.precision import DeclaredPrecision
from attnspec.spec.contract.semantics import DeclaredSemantics, Semantics


def described(name: str, device: str) -> dict[str, Any]:
    """The contract of a backend as plain JSON; :class:`BackendError` if it cannot be used on the device."""
    backend = load(name)
    contract = contract_of(backend, name)
    kind = device.partition(":")[0]
    if kind not in contract.limits.devices:
        raise BackendError(
            f"backend {name!r}: device: expected one of {', '.join(contract.limits.devices)}; got {device!r}"
        )
    convert = getattr(backend, "from_numpy", None)
    if convert is not None:
        moved = guarded(lambda: convert(np.zeros(1, np.float32), device=device))
        if isinstance(moved, Raised):
            raise BackendError(f"backend {name!r}: from_numpy(…, device={device!r}) raised {moved.told}")
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
    }


def rebuilt(data: dict[str, Any], origin: str) -> Contract:
    """The contract that :func:`described` wrote down."""
    semantics, precision = data["semantics"], data["precision"]
    return Contract(
        data["name"],
        tuple(data["operations"]),
        Limits.of({k: tuple(v) if isinstance(v, list) else v for k, v in data["limits"].items()}),
        DeclaredSemantics(
            Semantics(**semantics["default"]), {k: Semantics(**v) for k, v in semantics["per_operation"].items()}
        ),
        DeclaredPrecision(precision["default"], precision["per_operation"]),
        data["differentiable"],
        data["notes"],
        origin,
    )


def main() -> None:
    """Describe the backend named on the command line."""
    name, device, path = sys.argv[1:4]
    try:
        answer = described(name, device)
    except BackendError as error:
        answer = {"error": str(error)}
    Path(path).write_text(json.dumps(answer))
    os._exit(0)


if __name__ == "__main__":
    main()
