"""Replaying one verdict from literal arguments, as the snippets of reports do."""

from collections.abc import Mapping
from typing import Any

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.running.loading import contract_of, load
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
) -> int:
    """Check a law on these arguments and print what became of it: 1 if it is violated, 0 if it holds.

    ``backend`` is a backend, or the name of one. The seed determines what a law draws at random. The inputs that are
    printed are those that the backend was called with; they differ from ``arguments`` where the law changes them or
    makes its own.
    """
    origin = backend if isinstance(backend, str) else getattr(backend, "name", "?")
    loaded = load(backend) if isinstance(backend, str) else backend
    subject = Subject(loaded, contract_of(loaded, origin), OPERATIONS[operation], dtype, device)
    given = Arguments(OPERATIONS[operation], arguments)
    violation, *_ = attempt(subject, CHECKS[law], given, seed)
    print(f"{law}: {LAWS[law].statement}")
    if violation is None:
        print(f"{operation} of {origin} ({dtype}) satisfies it here.")
        return 0
    print(f"{operation} of {origin} ({dtype}) violates it: {violation.message}")
    shown = violation.arguments or given
    for name, value in shown.values_by_name.items():
        print(f"{name} = {as_source(value, str)}")
    if violation.expected is not None:
        print("expected", violation.expected, "got", violation.got, sep="\n")
    return 1
