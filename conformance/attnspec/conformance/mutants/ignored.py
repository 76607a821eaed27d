"""Mutants that ignore an optional argument: one for every argument with a default."""

from collections.abc import Iterator
from typing import Any

from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.mutants.registry import Mutant, mutant
from attnspec.conformance.mutants.roles import Arguments
from attnspec.spec.contract.operation import OPERATIONS, Operation


def optional_of(operation: Operation) -> Iterator[str]:
    """Names of the optional arguments of an operation."""
    return (name for name in operation.call.names if name in operation.defaults)


def mutant_name(name: str) -> str:
    """Name of the mutant that ignores this argument."""
    return f"{name} accepted and dropped"


def _ignoring(name: str) -> Mutant:
    """Make the mutant that computes with the default of this argument, whatever is passed."""

    def prepared(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        return {n: x for n, x in Library.prepare(correct, operation, arguments).items() if n != name}

    prepared.__doc__ = f"Everything is computed with the default of {name}."
    prepared.__qualname__ = f"ignored_{name}"
    operations = [o for o in OPERATIONS.values() if not o.reference_only and name in optional_of(o)]
    return mutant(
        mutant_name(name),
        replaces="prepare",
        operations=[o.protocol for o in operations],
        breaks=("operation.oracle",),
        source="an argument that a wrapper takes and does not pass on",
    )(prepared)


NAMES = sorted({name for o in OPERATIONS.values() if not o.reference_only for name in optional_of(o)})

# Worker processes unpickle a mutant by the name of its function in this module.
globals().update({f"ignored_{name}": _ignoring(name) for name in NAMES})
