"""The subject of a judgement: a backend whose results are known already."""

from collections.abc import Mapping
from typing import Any

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import flatten


class _Given:
    """A backend that is never called."""

    name = "the given result"

    def __init__(self, operation: str, precision: Any, semantics: Any) -> None:
        self.precision, self.semantics = precision, semantics
        setattr(self, operation, lambda *arguments, **options: None)


def subject_of(
    operation: Operation, dtype: str, precision: str | Mapping[str, Any] | None, semantics: Mapping[str, Any] | None
) -> Subject:
    """A subject of this operation and dtype, of the class and with the choices that are declared.

    Errors: ``ValueError`` for an unknown class or choice, ``TypeError`` for a class that is no name.
    """
    for name in flatten(dict(precision)).values() if isinstance(precision, Mapping) else ():
        if not isinstance(name, str):
            raise TypeError(f"precision: expected names of classes; got {name!r}")
    declared = {dtype: precision} if isinstance(precision, str) else precision
    backend = _Given(operation.name, declared, semantics)
    return Subject(backend, Contract.of(backend), operation, dtype, "cpu")
