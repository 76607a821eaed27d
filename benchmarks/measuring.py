"""Measuring one case: subjects are made, found right or wrong, and timed in turns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import Case, Subject, Thunk
from benchmarks.exact import errors
from benchmarks.memory import peak_on_cpu, peak_on_cuda
from benchmarks.results import Measurement, significant
from benchmarks.suites.settings import Settings
from benchmarks.timing import Times, interleaved, timed

ALLOWED = 16.0
"""How many times the error of the formula itself in single precision a subject's may be: sums in another order differ
by a few."""


@dataclass
class Examined:
    """The subjects of a case after their first calls: those that can be timed, and why the others cannot."""

    calls: dict[str, Thunk] = field(default_factory=dict)
    firsts: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    not_timed: dict[str, str] = field(default_factory=dict)


def measure(
    case: Case,
    settings: Settings,
    *,
    rounds: int,
    seconds: float,
    memory: bool,
    note: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """One measurement for every subject of a case; who is absent, wrong or fails is not timed, and says why."""
    threads = torch.get_num_threads() if settings.device == "cpu" else 0
    examined = examine(case, settings.device, note)
    note(f"timing {len(examined.calls)} in turns")
    times = interleaved(examined.calls, examined.firsts, rounds=rounds, seconds=seconds, device=settings.device)
    peaks: dict[str, int | str] = {}
    for name, call in examined.calls.items() if memory and case.memory else ():
        note(f"memory of {name}")
        if settings.device == "cpu":
            peaks[name] = peak_on_cpu(case.suite, case.key, name, threads, {"sizes": [case.size]})
        else:
            peaks[name] = peak_on_cuda(call)
    return [_measurement(case, subject.name, threads, examined, times, peaks) for subject in case.subjects]


def examine(case: Case, device: str, note: Callable[[str], None] = lambda text: None) -> Examined:
    """The first call of every subject, compared with the formula in double precision."""
    torch._dynamo.reset()
    note("formula")
    exact = case.formula(torch.float64)
    eps = torch.finfo(torch.float32).eps
    off = errors(case.formula(torch.float32), exact)
    # rounding errors of a sum are as good as independent: they grow with the root of the number of summands
    floors = [eps * summands**0.5 for summands in case.summands(len(off))]
    allowed = [ALLOWED * max(error, floor) for error, floor in zip(off, floors, strict=True)]
    found = Examined()
    for subject in case.subjects:
        name = subject.name
        if subject.absent:
            found.not_timed[name] = f"absent: {subject.absent}"
            continue
        note(f"first call of {name}")
        try:
            call, found.firsts[name], results = _first(subject, device)
            off = errors(case.part(results), exact)
        except NotImplementedError as error:
            found.not_timed[name] = f"absent: {str(error) or type(error).__name__}"
            continue
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            found.not_timed[name] = f"failed: {type(error).__name__}: {error}"
            continue
        del results
        found.errors[name] = max(off)
        wrong = [i for i, (error, limit) in enumerate(zip(off, allowed, strict=True)) if not error <= limit]
        if wrong:
            what = f"gradient {wrong[0]}" if wrong[0] else "output"
            found.not_timed[name] = f"wrong: {what}: error {off[wrong[0]]:.1e}, allowed {allowed[wrong[0]]:.1e}"
        else:
            found.calls[name] = call
    return found


def _first(subject: Subject, device: str) -> tuple[Thunk, float, list[Tensor]]:
    """The call, how long making and calling it took at first, and its results."""
    made: list[Thunk] = []
    results: list[Tensor] = []

    def both() -> None:
        made.append(subject.make())
        results.extend(made[0]())

    seconds = timed(both, device)
    return made[0], seconds, results


def _measurement(
    case: Case, name: str, threads: int, examined: Examined, times: Mapping[str, Times], peaks: Mapping[str, int | str]
) -> Measurement:
    fixed: dict[str, Any] = {
        "suite": case.suite, "case": case.name, "mode": case.mode, "sizes": dict(case.sizes), "size": case.size,
        "threads": threads, "subject": name, "baseline": case.baseline, "work": case.work, "unit": case.unit,
        "ceiling": case.ceiling, "error": _rounded(examined.errors.get(name)),
        "first_call": _rounded(examined.firsts.get(name)), "not_timed": examined.not_timed.get(name, ""),
    }  # fmt: skip
    if name not in times:
        return Measurement(**fixed)
    t, peak = times[name], peaks.get(name)
    low, high = t.quartiles
    return Measurement(
        **fixed, seconds=significant(t.median), quartiles=(significant(low), significant(high)), rounds=len(t.samples),
        peak_bytes=peak if isinstance(peak, int) else None, peak_unknown=peak if isinstance(peak, str) else "",
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else significant(value)
