"""Cases of a run: each operation at each dtype, with the laws to judge it by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from attnspec.conformance.judging.checks import CHECKS
from attnspec.conformance.judging.declaration import Contract
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS, Operation

BOOLEAN_DTYPE, DEFAULT_DTYPE = "bool", "default"
"""Dtype names for operations with boolean results, and for those without float inputs."""


@dataclass(frozen=True)
class Case:
    """One operation at one dtype, and the laws to judge it by.

    ``is_leading_dtype``: ``quick`` runs the checks that need only one dtype here. ``laws_selected``: the user selected
    the laws, so that slow checks run, too.
    """

    operation: str
    dtype: str
    laws: tuple[str, ...]
    is_leading_dtype: bool = True
    laws_selected: bool = False

    @property
    def id(self) -> str:
        """An identifier that is unique within a run."""
        return f"{self.operation}-{self.dtype}"


def dtypes_of(operation: Operation, dtypes: Iterable[str]) -> tuple[str, ...]:
    """The dtypes at which an operation is judged."""
    if not operation.float_result and not operation.floats:
        return (BOOLEAN_DTYPE,)
    return tuple(dtypes) if operation.floats else (DEFAULT_DTYPE,)


@lru_cache(maxsize=1024)
def governing_laws(operation: Operation) -> tuple[str, ...]:
    """All laws that govern an operation, selected or not."""
    return tuple(i for i, x in LAWS.items() if x.concerns(operation))


def cases(
    contract: Contract, *, operations: Sequence[str] = (), laws: Sequence[str] = (), dtypes: Sequence[str] = ()
) -> list[Case]:
    """The cases of a backend, float64 first, most laws first; empty selections select everything."""
    chosen = [
        o for o in OPERATIONS.values() if o.name in contract.operations and (not operations or o.name in operations)
    ]
    result = []
    for operation in chosen:
        governing = tuple(i for i in governing_laws(operation) if not laws or i in laws)
        unchecked = [law for law in governing if law not in CHECKS]
        if unchecked:
            raise LookupError(f"law {unchecked[0]}: expected a check in attnspec.conformance.laws; got none")
        if governing:
            tested = [d for d in contract.limits.dtypes_for(operation.name) if not dtypes or d in dtypes]
            case_dtypes = dtypes_of(operation, tested)
            leading = "float32" if "float32" in case_dtypes else next(iter(case_dtypes), "")
            result += [Case(operation.name, dtype, governing, dtype == leading) for dtype in case_dtypes]
    # A worker that stays with a dtype reuses the kernels that the backend has compiled for it.
    return sorted(result, key=lambda c: (c.dtype != "float64", c.dtype, -len(c.laws), c.operation))
