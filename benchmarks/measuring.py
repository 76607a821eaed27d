"""Measurement of one case: its subjects are checked against the formula, then timed in interleaved rounds."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import multiply_adds
from benchmarks.case import OURS, Call, Case, Subject
from benchmarks.exact import errors
from benchmarks.memory import peak_on_cpu, peak_on_cuda
from benchmarks.results import Measurement, significant
from benchmarks.suites.settings import Settings
from benchmarks.timing import Times, interleaved, time_once

LIMIT, LIMIT_ALONE, OURS_ALONE = "multiply-adds", "multiply-adds with one thread", "attnspec with one thread"
"""Calls beside the subjects: they measure the limiting rate and the gain of threads in the same rounds."""

ERROR_FACTOR = 16.0
"""Allowed error of a subject, in units of the formula's error in the inputs' dtype. Sums in another order differ by a
small factor."""


@dataclass
class CheckedSubjects:
    """Subjects of a case after their first calls: those that can be timed, and reasons for the others."""

    calls: dict[str, Call] = field(default_factory=dict)
    first_calls: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    not_timed: dict[str, str] = field(default_factory=dict)


def measure(
    case: Case,
    settings: Settings,
    *,
    rounds: int,
    seconds: float,
    memory: bool,
    step: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Measure every subject of a case; absent, wrong or failing ones have a reason instead of a time."""
    threads = torch.get_num_threads() if settings.device == "cpu" else 0
    checked = check_subjects(case, settings.device, step)
    step(f"timing {len(checked.calls)} in interleaved rounds")
    calls: dict[str, Callable[[], object]] = {**checked.calls}
    first_calls, counted = dict(checked.first_calls), 0
    gains = case.gains and threads > 1 and OURS in calls and multiply_adds.available()
    if case.ceiling == "multiply-adds" or gains:
        calls[LIMIT], counted = multiply_adds.call(64 * threads)
        first_calls[LIMIT] = time_once(calls[LIMIT], settings.device)
    if gains:
        calls |= {LIMIT_ALONE: calls[LIMIT], OURS_ALONE: calls[OURS]}
        first_calls |= {LIMIT_ALONE: first_calls[LIMIT], OURS_ALONE: first_calls[OURS]}
    times = interleaved(
        calls, first_calls, rounds=rounds, seconds=seconds, device=settings.device, alone=(LIMIT_ALONE, OURS_ALONE)
    )
    limit = significant(counted / times[LIMIT].median) if case.ceiling == "multiply-adds" else None
    gain = significant(_gain(times, OURS, OURS_ALONE) / _gain(times, LIMIT, LIMIT_ALONE)) if gains else None
    peaks: dict[str, int | str] = {}
    for name, call in checked.calls.items() if memory and case.memory else ():
        step(f"memory of {name}")
        if settings.device == "cpu":
            peaks[name] = peak_on_cpu(case.suite, case.key, name, threads, {"sizes": [case.size]})
        else:
            peaks[name] = peak_on_cuda(call)
    found = [_measurement(case, subject.name, threads, checked, times, peaks) for subject in case.subjects]
    return [replace(m, limit=limit, gain=gain if m.subject == OURS else None) for m in found]


def _gain(times: Mapping[str, Times], name: str, alone: str) -> float:
    """Speedup of a call over the same call with one thread, the median over rounds."""
    pairs = zip(times[alone].samples, times[name].samples, strict=True)
    return statistics.median(one / several for one, several in pairs)


def check_subjects(case: Case, device: str, step: Callable[[str], None] = lambda text: None) -> CheckedSubjects:
    """Call every subject once and compare its results with the formula in double precision."""
    torch._dynamo.reset()
    step("formula")
    exact = case.formula(torch.float64)
    eps = torch.finfo(case.precision).eps
    formula_errors = errors(case.formula(case.precision), exact)
    # rounding errors of a sum are nearly independent and grow with the root of the number of terms
    floors = [eps * terms**0.5 for terms in case.summands(len(formula_errors))]
    allowed = [ERROR_FACTOR * max(error, floor) for error, floor in zip(formula_errors, floors, strict=True)]
    found = CheckedSubjects()
    for subject in case.subjects:
        name = subject.name
        if subject.absent:
            found.not_timed[name] = f"absent: {subject.absent}"
            continue
        step(f"first call of {name}")
        try:
            call, found.first_calls[name], results = _first(subject, device)
            found_errors = errors(case.comparable(results), exact)
        except NotImplementedError as error:
            found.not_timed[name] = f"absent: {str(error) or type(error).__name__}"
            continue
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            found.not_timed[name] = f"failed: {type(error).__name__}: {error}"
            continue
        del results
        found.errors[name] = max(found_errors)
        wrong = [i for i, (error, limit) in enumerate(zip(found_errors, allowed, strict=True)) if not error <= limit]
        if wrong:
            what = f"gradient {wrong[0]}" if wrong[0] else "output"
            found.not_timed[name] = (
                f"wrong: {what}: error {found_errors[wrong[0]]:.1e}, allowed {allowed[wrong[0]]:.1e}"
            )
        else:
            found.calls[name] = call
    return found


def _first(subject: Subject, device: str) -> tuple[Call, float, list[Tensor]]:
    """Make a subject's call and call it once; return the call, the seconds of both, and the results."""
    made: list[Call] = []
    results: list[Tensor] = []

    def both() -> None:
        made.append(subject.make())
        results.extend(made[0]())

    seconds = time_once(both, device)
    return made[0], seconds, results


def _measurement(
    case: Case,
    name: str,
    threads: int,
    checked: CheckedSubjects,
    times: Mapping[str, Times],
    peaks: Mapping[str, int | str],
) -> Measurement:
    fixed: dict[str, Any] = {
        "suite": case.suite, "case": case.name, "mode": case.mode, "sizes": dict(case.sizes), "size": case.size,
        "threads": threads, "subject": name, "baseline": case.baseline, "work": case.work, "unit": case.unit,
        "ceiling": case.ceiling, "per_unit": case.per_unit, "error": _rounded(checked.errors.get(name)),
        "first_call": _rounded(checked.first_calls.get(name)), "not_timed": checked.not_timed.get(name, ""),
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
