"""Functions for the scripts in reports: check a law again, or call a backend once."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.explaining.missing_declarations import with_declared_choices
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.judging.attempt import first_violated
from attnspec.conformance.judging.isolation import abnormal_end, forks
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
    semantics: Mapping[str, Any] | None = None,
) -> int:
    """Check a law on these arguments; print the result; return 1 if violated, else 0.

    ``backend`` is a backend or its name. ``seed`` determines the law's random draws. The printed inputs are those of
    the backend's call; they differ from ``arguments`` where the law changes them or makes its own. With ``hang_after``
    the law is first checked in another process; a crash of it, or more than so many seconds, violates the law.
    ``semantics`` are choices by which to judge although the backend does not declare them.
    """
    origin = backend if isinstance(backend, str) else getattr(backend, "name", "?")
    loaded = load(backend) if isinstance(backend, str) else backend
    contract = with_declared_choices(contract_of(loaded, origin, device), operation, semantics or {})
    subject = Subject(loaded, contract, OPERATIONS[operation], dtype, device)
    call_arguments = Arguments(OPERATIONS[operation], arguments)
    print(f"{law}: {LAWS[law].statement}")
    if hang_after is not None:
        end = None
        if forks(device):
            end = abnormal_end(lambda: first_violated(subject, CHECKS[law], call_arguments, seed), hang_after)
        elif isinstance(backend, str):
            # Imported here, since it loads the search for smaller inputs.
            from attnspec.conformance.running.trial_call import end_in_new_process

            end = end_in_new_process(subject, CHECKS[law], call_arguments, seed, hang_after)
        if end is not None:
            print(f"{operation} of {origin} ({dtype}) violates it: {end.description}")
            _print_arguments(call_arguments)
            return 1
    first = first_violated(subject, CHECKS[law], call_arguments, seed)
    if first is None:
        print(f"{operation} of {origin} ({dtype}) satisfies it here.")
        return 0
    _, violation = first
    print(f"{operation} of {origin} ({dtype}) violates it: {violation.message}")
    _print_arguments(violation.arguments or call_arguments)
    if violation.expected is not None:
        print("expected", violation.expected, "got", violation.got, sep="\n")
        difference = _difference(violation.got, violation.expected)
        if difference is not None:
            print("difference", difference, sep="\n")
    return 1


def _print_arguments(shown: Arguments) -> None:
    for name, value in shown.operands_by_name.items():
        print(f"{name} = {as_source(value, _printed)}")


def _printed(x: Any) -> str:
    """Return an argument as text; an array without elements by its shape."""
    return f"an array of shape {x.shape}" if isinstance(x, np.ndarray) and not x.size else str(x)


def _difference(got: Any, expected: Any) -> Numbers | None:
    """Return ``got`` minus ``expected``; None if they are not numbers or differ in shape."""
    got_array, expected_array = np.asarray(got), np.asarray(expected)
    if got_array.shape != expected_array.shape or not (_is_number(got_array) and _is_number(expected_array)):
        return None
    wide = np.result_type(expected_array.dtype, np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(got_array.astype(wide) - expected_array.astype(wide))


def _is_number(x: Numbers) -> bool:
    return x.dtype.kind in "iuf" or is_float(x)


def call(backend: Any, operation: str, *, device: str = "cpu", **arguments: Any) -> Any:
    """Call an operation of a backend with NumPy arrays; the result is a NumPy array."""
    contract = contract_of(backend, getattr(backend, "name", "?"), device)
    definition = OPERATIONS[operation]
    call_arguments = Arguments(definition, arguments)
    floats = [x.dtype.name for _, x in call_arguments.floats if isinstance(x, np.ndarray)]
    subject = Subject(backend, contract, definition, floats[0] if floats else "float64", device)
    results = subject.numpy_arrays(subject.invoke(subject.converted(call_arguments)))
    if len(results) == 1:
        return next(iter(results.values()))
    return subject.like_result(results, call_arguments, convert=False)
