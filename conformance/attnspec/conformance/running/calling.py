"""One call of a backend with arrays of NumPy, as the scripts of reports make it."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.remote.loading import contract_of
from attnspec.spec.contract.operation import OPERATIONS


def call(backend: Any, operation: str, *, device: str = "cpu", **arguments: Any) -> Any:
    """Call an operation of a backend with NumPy arrays; the result is a NumPy array."""
    contract = contract_of(backend, getattr(backend, "name", "?"))
    described = OPERATIONS[operation]
    given = Arguments(described, arguments)
    floats = [x.dtype.name for _, x in given.floats if isinstance(x, np.ndarray)]
    subject = Subject(backend, contract, described, floats[0] if floats else "float64", device)
    found = subject.unfolded(subject.invoke(subject.converted(given)))
    return next(iter(found.values())) if len(found) == 1 else subject.like_result(found, given, convert=False)
