"""Rows of a library's matrix: their registration, declarations, and first calls.

``python -m attnspec.conformance.matrix.rows ROW DEVICE ANSWER`` imports a row and writes its declarations to the file
ANSWER. It then calls each operation once at every dtype, and adds the library's reasons for the calls that it refused.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.foreign_calls import Raised, call_safely, printable
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.conformance.matrix.messages import without_places
from attnspec.conformance.remote.description import contract_from, describe
from attnspec.conformance.remote.environment import ONE_THREAD, SAFE_PATH
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.folder import TemporaryFolder
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.running.selection import unknown_name
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

GROUP = "attnspec.matrices"
"""Entry-point group that maps a library's name to the module that defines its ``ROWS``."""

SECONDS = 600.0
"""Seconds after which a row's first calls count as hung. The library may compile in them."""

MAX_REASON = 300
"""Characters after which a library's reason is cut."""

Offers = dict[str, dict[str, dict[str, str | None]]]
"""The library's reason for refusing a call, by dtype, operation and direction; None if it returns a result."""


@dataclass(frozen=True)
class Library:
    """A library with a matrix: its name, the package that has its version, its rows and devices."""

    name: str
    package: str
    rows: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class ProbedRow:
    """A row before it is judged: its declarations and refused calls, or the ``error`` of its import.

    ``offers`` is None if the first calls ended the process or took too long; the suite then searches for the input that
    does so. ``plain`` is True if the row has source for a program without attnspec. ``tools`` are texts by which errors
    of a tool that the row needs, such as a compiler, are recognised.
    """

    origin: str
    contract: Contract | None
    offers: Offers | None
    hang_after: float = Settings.hang_after
    plain: bool = False
    error: str = ""
    tools: tuple[str, ...] = ()


def library(name: str) -> Library:
    """Return the library of this name; :class:`BackendError` if it is unknown or cannot be imported."""
    known = {e.name: e.value for e in sorted(entry_points(group=GROUP), key=lambda e: e.name)}
    if name not in known:
        raise BackendError(unknown_name("matrix", name, known))
    module = call_safely(lambda: import_module(known[name]))
    if isinstance(module, Raised):
        raise BackendError(f"matrix {name!r}: cannot be imported: {without_places(module.message)}") from module.error
    return Library(name, module.PACKAGE, tuple(module.ROWS), tuple(module.devices()))


# In the process of the command ----------------------------------------------------------------------------------------


def probe_rows(library: Library, device: str, workers: int, on_called: Callable[[str], None]) -> list[ProbedRow]:
    """Call all rows once, in parallel processes; :class:`BackendError` if no row runs on the device."""
    if device.partition(":")[0] not in library.devices:
        raise BackendError(f"--device: expected one of {', '.join(library.devices)}; got {device!r}")

    def probe(origin: str) -> ProbedRow:
        row = _probe_row(origin, device)
        on_called(origin)
        return row

    with ThreadPoolExecutor(workers) as pool:
        probed_rows = list(pool.map(probe, library.rows))
    # `describe` reports with this text that a row could place no array on the device.
    if probed_rows and all(p.contract is None and "from_numpy(" in p.error for p in probed_rows):
        raise BackendError(f"--device: {probed_rows[0].error}")
    return probed_rows


def _probe_row(origin: str, device: str) -> ProbedRow:
    with TemporaryFolder() as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, "-m", "attnspec.conformance.matrix.rows", origin, device, str(answer)]
        environment = {**os.environ, **ONE_THREAD, **SAFE_PATH}
        try:
            process = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
            )
            ending = f"ended the process with status {process.returncode}"
        except subprocess.TimeoutExpired:
            ending = f"did not end within {SECONDS:g} s"
        outcome: dict[str, Any] = {"error": f"its import {ending}"}
        if answer.exists():
            outcome = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in outcome:
        return ProbedRow(origin, None, None, error=str(outcome["error"]))
    contract, tools = contract_from(outcome["description"], origin), tuple(outcome["tools"])
    return ProbedRow(origin, contract, outcome["offers"], outcome["hang_after"], outcome["plain"], tools=tools)


# In the process of a row ----------------------------------------------------------------------------------------------


def offers(backend: Any, contract: Contract, device: str) -> Offers:
    """Call each operation with a plain input at every dtype, and return the library's refusals."""
    refusals: Offers = {}
    for dtype in contract.limits.dtypes:
        refusals[dtype] = {}
        for name in contract.operations:
            if dtype in contract.limits.dtypes_for(name):
                refusals[dtype][name] = _refusals(Subject(backend, contract, OPERATIONS[name], dtype, device))
    return refusals


def _refusals(subject: Subject) -> dict[str, str | None]:
    rng = np.random.default_rng(stable_seed("matrix", subject.operation.name, subject.dtype))
    arguments = sample(subject, rng, (2,), queries=3, keys=5)

    def forward() -> Any:
        return subject.numpy_arrays(subject.invoke(subject.converted(arguments)))

    def backward() -> Any:
        cotangent = subject.like_result(subject.cotangents(arguments, rng), arguments)
        return subject.backend.vjp(subject.operation.name, subject.converted(arguments), cotangent)

    tools = tuple(getattr(subject.backend, "tools", ()))
    refused = refusal(forward, tools)
    if not subject.contract.differentiable:
        return {"forward": refused, "backward": "the row has no gradients"}
    return {"forward": refused, "backward": refused or refusal(backward, tools)}


def refusal(call: Callable[[], Any], tools: Collection[str] = ()) -> str | None:
    """Return the library's reason for refusing a call: its error and its warnings.

    If a tool failed, the call is repeated once.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        outcome = call_safely(call)
        if isinstance(outcome, Raised) and any(tool in outcome.message for tool in tools):
            outcome = call_safely(call)
    if not isinstance(outcome, Raised):
        return None
    error = outcome.error
    while error.__cause__ is not None:  # compilers wrap the library's own error
        error = error.__cause__
    library_warnings = [w for w in warned if not issubclass(w.category, DeprecationWarning | FutureWarning)]
    texts = [f"{type(error).__name__}: {error}", *(str(w.message) for w in library_warnings)]
    lines = dict.fromkeys(" ".join(text.split("\n\n")[0].split()) for text in texts)
    return printable("; ".join(line if len(line) <= MAX_REASON else line[:MAX_REASON] + " …" for line in lines))


def main() -> None:
    """Describe and try the row named on the command line."""
    origin, device, path = sys.argv[1:4]
    answer = Path(path)
    try:
        backend = load(origin)
        description: dict[str, Any] = {"description": describe(backend, origin, device), "offers": None}
    except BackendError as error:
        answer.write_text(json.dumps({"error": str(error)}), encoding="utf-8")
        os._exit(0)
    description["hang_after"] = float(getattr(backend, "hang_after", Settings.hang_after))
    description["tools"] = list(getattr(backend, "tools", ()))
    description["plain"] = callable(getattr(backend, "plain", None))
    # Declarations are written first, since a call may end this process.
    answer.write_text(json.dumps(description), encoding="utf-8")
    description["offers"] = offers(backend, contract_of(backend, origin, device), device)
    answer.write_text(json.dumps(description), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # without the library's exit handlers, and without waiting for its threads


if __name__ == "__main__":
    main()
