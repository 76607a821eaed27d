"""Functions that the scripts in reports call: check a law again, and call a backend once."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.judging.attempt import first_violated
from attnspec.conformance.judging.isolation import POSSIBLE, end_of
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import as_source


def replay(
    backend: Any,
    law: str,
    operation: str,
    dtype: str,
    arguments: Mapping[str, Any],
    *,
    seed: int = 0,
    device: str = "cpu",
    hang_after: float | None = None,
) -> int:
    """Check a law on these arguments and print the result; return 1 if violated, 0 if not.

    ``backend`` is a backend, or the name of one. ``seed`` determines the law's random draws. The printed inputs are
    those of the backend's call; they differ from ``arguments`` where the law changes them or makes its own. With
    ``hang_after`` the law is first checked in its own process, which may crash or take longer than so many seconds.
    """
    origin = backend if isinstance(backend, str) else getattr(backend, "name", "?")
    loaded = load(backend) if isinstance(backend, str) else backend
    subject = Subject(loaded, contract_of(loaded, origin), OPERATIONS[operation], dtype, device)
    given = Arguments(OPERATIONS[operation], arguments)
    print(f"{law}: {LAWS[law].statement}")
    if hang_after is not None and POSSIBLE:
        end = end_of(lambda: first_violated(subject, CHECKS[law], given, seed), hang_after)
        if end is not None:
            print(f"{operation} of {origin} ({dtype}) violates it: {end.words}")
            _print_arguments(given)
            return 1
    found = first_violated(subject, CHECKS[law], given, seed)
    if found is None:
        print(f"{operation} of {origin} ({dtype}) satisfies it here.")
        return 0
    _, violation = found
    print(f"{operation} of {origin} ({dtype}) violates it: {violation.message}")
    _print_arguments(violation.arguments or given)
    if violation.expected is not None:
        print("expected", violation.expected, "got", violation.got, sep="\n")
        difference = _difference(violation.got, violation.expected)
        if difference is not None:
            print("difference", difference, sep="\n")
    return 1


def _print_arguments(shown: Arguments) -> None:
    for name, value in shown.values_by_name.items():
        print(f"{name} = {as_source(value, _printed)}")


def _printed(x: Any) -> str:
    """Return an argument as text; for an array without elements, its shape."""
    return f"an array of shape {x.shape}" if isinstance(x, np.ndarray) and not x.size else str(x)


def _difference(got: Any, expected: Any) -> Numbers | None:
    """Return ``got`` minus ``expected``; None if they are not numbers or differ in shape."""
    found, wanted = np.asarray(got), np.asarray(expected)
    if found.shape != wanted.shape or not (_is_number(found) and _is_number(wanted)):
        return None
    wide = np.result_type(wanted.dtype, np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(found.astype(wide) - wanted.astype(wide))


def _is_number(x: Numbers) -> bool:
    return x.dtype.kind in "iuf" or is_float(x)


def call(backend: Any, operation: str, *, device: str = "cpu", **arguments: Any) -> Any:
    """Call an operation of a backend with NumPy arrays; the result is a NumPy array."""
    contract = contract_of(backend, getattr(backend, "name", "?"))
    described = OPERATIONS[operation]
    given = Arguments(described, arguments)
    floats = [x.dtype.name for _, x in given.floats if isinstance(x, np.ndarray)]
    subject = Subject(backend, contract, described, floats[0] if floats else "float64", device)
    found = subject.unfolded(subject.invoke(subject.converted(given)))
    return next(iter(found.values())) if len(found) == 1 else subject.like_result(found, given, convert=False)
