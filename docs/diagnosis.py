"""Make ``docs/diagnosis.md``: ``python docs/diagnosis.py`` diagnoses every mutant and many others, in half an hour.

``docs/diagnosis.json`` holds what is done; the command goes on from there, and begins anew without it.
"""

import json
import random
import runpy
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import typer

from attnspec.conformance.diagnosis.entry import Inquiry, inquiry
from attnspec.conformance.diagnosis.finding import Diagnosis
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases
from attnspec.conformance.judging.profiles import FORMULA, PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import mapped

ROOT = Path(__file__).parents[1]
PAGE, KEPT = (Path(__file__).with_suffix(suffix) for suffix in (".md", ".json"))
OTHERS = runpy.run_path(str(ROOT / "tests" / "conformance" / "mistaken.py"))
MISTAKEN: Mapping[str, Any] = OTHERS["MISTAKEN"]
RIGHT: Mapping[str, Sequence[str]] = OTHERS["RIGHT"]
FACTORS = ("2", "0.5", "0.99")

Outcome = Mapping[str, Any]
"""What became of one backend.

``seen``: whether a number was wrong that the diagnosis looked at. ``found``: the diagnosis. ``alone``: those with its own
entry left out, then with those named before left out too, until there is none. ``scaled``: those with a factor on top.
"""


class Scaled:
    """A backend whose results and gradients are multiplied by a factor."""

    def __init__(self, backend: Any, operation: str, factor: float) -> None:
        for name in ("name", "limits", "semantics", "precision", "from_numpy", "to_numpy"):
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))

        def times(_: str, x: Any) -> Any:
            return x if np.asarray(x).dtype.kind in "biu" else (x * factor).astype(x.dtype)

        setattr(self, operation, lambda *args, **options: mapped(getattr(backend, operation)(*args, **options), times))
        if callable(getattr(backend, "vjp", None)):
            self.vjp = lambda *args: mapped(backend.vjp(*args), times)


def asked(name: str, factor: str = "") -> Inquiry:
    """What is known of a mutant, of a rediscovered defect, or of an implementation with a mistake."""
    entry: Any = MUTANTS.get(name) or REDISCOVERED.get(name)
    backend = MISTAKEN[name] if entry is None else entry.backend()
    operation, dtype, laws = (
        (backend.operation, backend.dtype, (FORMULA,))
        if entry is None
        else (entry.operations[0], entry.dtype, laws_of(name))
    )
    contract = Contract.of(backend)
    found = cases(contract, operations=(operation,))
    case = next((c for c in found if c.dtype == dtype), found[0])
    results = [Result(operation, law, case.dtype, Status.FAILED, Reason.VALUE) for law in laws]
    if factor:
        backend = Scaled(backend, operation, float(factor))
    profile = PROFILES["quick" if entry is None else entry.profile]
    begun = inquiry(backend, contract, case, profile, results)
    if begun is None:
        raise ValueError(f"{name}: expected a law of numbers that is violated; got {laws}")
    return begun


def laws_of(name: str) -> tuple[str, ...]:
    """The laws by which a backend is convicted: those that a mutant is assigned, or the one that a report's page names."""
    if name in MUTANTS:
        return MUTANTS[name].breaks
    page = (ROOT / "docs" / "rediscovery.md").read_text(encoding="utf-8")
    laws = [line.split(" | ")[-2].strip("` ") for line in page.splitlines() if line.startswith(f"| [{name}]")]
    return tuple(laws) if REDISCOVERED[name].convicted else (FORMULA,)


def outcome(name: str) -> dict[str, Any]:
    """Diagnose one backend."""
    begun = asked(name)
    found, chain, left_out = begun.diagnosis(), list[Diagnosis](), {name}
    while name in MUTANTS:
        alone = replace(begun, start=time.process_time()).diagnosis(without=left_out)
        chain += [] if alone is None else [alone]
        if alone is None or not set(alone.same) & (set(MUTANTS) - left_out):
            break
        left_out.update(alone.same)
    several = name not in MUTANTS and OPERATIONS[begun.subject.operation.name].float_result
    scaled = {factor: asked(name, factor).diagnosis() for factor in FACTORS} if several else {}
    return {
        "seen": any(probe.wrong for probe in begun.probes),
        "found": _json(found),
        "alone": [x.as_json() for x in chain],
        "scaled": {factor: _json(x) for factor, x in scaled.items()},
    }


def _json(found: Diagnosis | None) -> dict[str, Any] | None:
    return None if found is None else found.as_json()


def main(workers: int = 2, minutes: float = 60.0, write: bool = True) -> None:
    """Diagnose what is left, as far as there is time, and write the page."""
    known: dict[str, Outcome] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    others, own = [*REDISCOVERED, *MISTAKEN], [*MUTANTS]
    # Of a run that is broken off, the mutants are a fair sample.
    random.Random(0).shuffle(own)
    end = time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        tasks = {pool.submit(outcome, name): name for name in [*others, *own] if name not in known}
        for task in as_completed(tasks):
            known[tasks[task]] = task.result()
            KEPT.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            if time.monotonic() > end:
                pool.shutdown(cancel_futures=True)
                break
    if write:
        PAGE.write_text(page(known), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
