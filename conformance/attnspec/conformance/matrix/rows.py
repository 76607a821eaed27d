"""Rows of a library's matrix: their registration, declarations, and first calls.

``python -m attnspec.conformance.matrix.rows ROW DEVICE ANSWER`` imports a row and writes its declarations to the file
ANSWER. It then calls each operation once at every dtype, and adds which calls the library refused, with its reasons.
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
"""Entry-point group that maps the name of a library to the module with its ``ROWS``."""

SECONDS = 600.0
"""Seconds after which a row's first calls count as hung; a library may compile in them."""

LONGEST = 300
"""Characters of a library's reason; the rest is cut."""

Offers = dict[str, dict[str, dict[str, str | None]]]
"""The library's reason for refusing a call, by dtype, operation and direction; None if it answers."""


@dataclass(frozen=True)
class Library:
    """A library with a matrix: name, package whose version counts, rows, and devices."""

    name: str
    package: str
    rows: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Probed:
    """A row before it is judged: its declarations and refusals, or the error that hides them.

    Without ``offers`` its first calls ended the process or took too long; the suite then finds the input. ``tools`` are
    texts in errors of a tool that the row needs, such as a compiler.
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


def probed(library: Library, device: str, workers: int, told: Callable[[str], None]) -> list[Probed]:
    """Call all rows once, several in parallel; :class:`BackendError` if none runs on the device."""
    if device.partition(":")[0] not in library.devices:
        raise BackendError(f"--device: expected one of {', '.join(library.devices)}; got {device!r}")

    def one(origin: str) -> Probed:
        found = _probed(origin, device)
        told(origin)
        return found

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, library.rows))
    if found and all(p.contract is None and "from_numpy(" in p.error for p in found):
        raise BackendError(f"--device: {found[0].error}")
    return found


def _probed(origin: str, device: str) -> Probed:
    module = "attnspec.conformance.matrix.rows"
    with TemporaryFolder() as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, "-m", module, origin, device, str(answer)]
        environment = {**os.environ, **ONE_THREAD, **SAFE_PATH}
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
            )
            how = f"ended the process with status {done.returncode}"
        except subprocess.TimeoutExpired:
            how = f"did not end within {SECONDS:g} s"
        found: dict[str, Any] = {"error": f"its import {how}"}
        if answer.exists():
            found = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        return Probed(origin, None, None, error=str(found["error"]))
    return Probed(
        origin,
        contract_from(found["description"], origin),
        found["offers"],
        found["hang_after"],
        found["plain"],
        tools=tuple(found["tools"]),
    )


# In the process of a row ----------------------------------------------------------------------------------------------


def offers(backend: Any, contract: Contract, device: str) -> Offers:
    """Return the library's refusals of a plain input, by dtype and operation."""
    found: Offers = {}
    for dtype in contract.limits.dtypes:
        found[dtype] = {}
        for name in contract.operations:
            if dtype in contract.limits.dtypes_for(name):
                found[dtype][name] = _refusals(Subject(backend, contract, OPERATIONS[name], dtype, device))
    return found


def _refusals(subject: Subject) -> dict[str, str | None]:
    rng = np.random.default_rng(stable_seed("matrix", subject.operation.name, subject.dtype))
    given = sample(subject, rng, (2,), queries=3, keys=5)

    def forward() -> Any:
        return subject.unfolded(subject.invoke(subject.converted(given)))

    def backward() -> Any:
        cotangent = subject.like_result(subject.cotangents(given, rng), given)
        return subject.backend.vjp(subject.operation.name, subject.converted(given), cotangent)

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
        found = call_safely(call)
        if isinstance(found, Raised) and any(tool in found.message for tool in tools):
            found = call_safely(call)
    if not isinstance(found, Raised):
        return None
    error = found.error
    while error.__cause__ is not None:  # a compiler wraps what the library says
        error = error.__cause__
    said = [w for w in warned if not issubclass(w.category, DeprecationWarning | FutureWarning)]
    texts = [f"{type(error).__name__}: {error}", *(str(w.message) for w in said)]
    lines = dict.fromkeys(" ".join(text.split("\n\n")[0].split()) for text in texts)
    return printable("; ".join(line if len(line) <= LONGEST else line[:LONGEST] + " …" for line in lines))


def main() -> None:
    """Describe and try the row named on the command line."""
    origin, device, path = sys.argv[1:4]
    answer = Path(path)
    try:
        backend = load(origin)
        found: dict[str, Any] = {"description": describe(backend, origin, device), "offers": None}
    except BackendError as error:
        answer.write_text(json.dumps({"error": str(error)}), encoding="utf-8")
        os._exit(0)
    found["hang_after"] = float(getattr(backend, "hang_after", Settings.hang_after))
    found["tools"] = list(getattr(backend, "tools", ()))
    found["plain"] = callable(getattr(backend, "plain", None))
    answer.write_text(json.dumps(found), encoding="utf-8")
    found["offers"] = offers(backend, contract_of(backend, origin), device)
    answer.write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
