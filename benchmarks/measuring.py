"""Measurement of one case: its subjects are checked, then timed in interleaved rounds."""

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
"""Extra calls, timed in the same rounds as the subjects, for the limiting rate and the gain of threads."""

LIMIT_TASKS = 64
"""Tasks per thread in a call of multiply-adds: a millisecond, so that starting the threads hardly counts."""

ERROR_FACTOR = 16.0
"""Allowed error of a subject, over the formula's error in the inputs' dtype: other orders of summation round
differently."""


@dataclass
class CheckedSubjects:
    """Subjects after their first calls: calls to be timed, and reasons for the others."""

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
    """Measure every subject of a case; absent, wrong or failing subjects get a reason instead."""
    threads = torch.get_num_threads() if settings.device == "cpu" else 0
    checked = check_subjects(case, settings.device, step)
    step(f"timing {len(checked.calls)} in interleaved rounds")
    calls: dict[str, Callable[[], object]] = {**checked.calls}
    first_calls, counted = dict(checked.first_calls), 0
    gains = case.gains and threads > 1 and OURS in calls and multiply_adds.available()
    if case.ceiling == "multiply-adds" or gains:
        calls[LIMIT], counted = multiply_adds.call(LIMIT_TASKS * threads)
        first_calls[LIMIT] = time_once(calls[LIMIT], settings.device)
    if gains:
        calls |= {LIMIT_ALONE: calls[LIMIT], OURS_ALONE: calls[OURS]}
        first_calls |= {LIMIT_ALONE: first_calls[LIMIT], OURS_ALONE: first_calls[OURS]}
    times = interleaved(
        calls, first_calls, rounds=rounds, seconds=seconds, device=settings.device, alone=(LIMIT_ALONE, OURS_ALONE)
    )
    limit = significant(counted / times[LIMIT].median) if case.ceiling == "multiply-adds" else None
    gain = significant(_speedup(times, OURS, OURS_ALONE) / _speedup(times, LIMIT, LIMIT_ALONE)) if gains else None
    peaks: dict[str, int | str] = {}
    for name, call in checked.calls.items() if memory and case.memory else ():
        step(f"memory of {name}")
        if settings.device == "cpu":
            peaks[name] = peak_on_cpu(case.suite, case.key, name, threads, {"sizes": [case.size]})
        else:
            peaks[name] = peak_on_cuda(call)
    measurements = [_measurement(case, subject.name, threads, checked, times, peaks) for subject in case.subjects]
    return [replace(m, limit=limit, gain=gain if m.subject == OURS else None) for m in measurements]


def _speedup(times: Mapping[str, Times], name: str, alone: str) -> float:
    """Return the speedup of a call over itself with one thread, the median over rounds."""
    pairs = zip(times[alone].samples, times[name].samples, strict=True)
    return statistics.median(single / threaded for single, threaded in pairs)


def check_subjects(case: Case, device: str, step: Callable[[str], None] = lambda text: None) -> CheckedSubjects:
    """Call every subject once and compare its results with the formula in double precision."""
    torch._dynamo.reset()  # torch.compile refuses a function after several sizes, and cases share functions
    step("formula")
    exact = case.formula(torch.float64)
    eps = torch.finfo(case.precision).eps
    formula_errors = errors(case.formula(case.precision), exact)
    # Gradients of inputs without a batch dimension are sums over the batch. Rounding errors of a sum are nearly
    # independent: together they grow with the root of the number of terms.
    floors = [eps * terms**0.5 for terms in case.summands(len(formula_errors))]
    allowed = [ERROR_FACTOR * max(error, floor) for error, floor in zip(formula_errors, floors, strict=True)]
    checked = CheckedSubjects()
    for subject in case.subjects:
        name = subject.name
        if subject.absent:
            checked.not_timed[name] = f"absent: {subject.absent}"
            continue
        step(f"first call of {name}")
        try:
            call, checked.first_calls[name], results = _first_call(subject, device)
            subject_errors = errors(case.comparable(results), exact)
        except NotImplementedError as error:
            checked.not_timed[name] = f"absent: {str(error) or type(error).__name__}"
            continue
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            checked.not_timed[name] = f"failed: {type(error).__name__}: {error}"
            continue
        del results
        checked.errors[name] = max(subject_errors)
        wrong = [i for i, (error, limit) in enumerate(zip(subject_errors, allowed, strict=True)) if not error <= limit]
        if wrong:
            result = f"gradient {wrong[0]}" if wrong[0] else "output"
            checked.not_timed[name] = (
                f"wrong: {result}: error {subject_errors[wrong[0]]:.1e}, allowed {allowed[wrong[0]]:.1e}"
            )
        else:
            checked.calls[name] = call
    return checked


def _first_call(subject: Subject, device: str) -> tuple[Call, float, list[Tensor]]:
    """Make and run a subject's call; return it, the seconds of both, and the results."""
    calls: list[Call] = []
    results: list[Tensor] = []

    def make_and_call() -> None:
        calls.append(subject.make())
        results.extend(calls[0]())

    seconds = time_once(make_and_call, device)
    return calls[0], seconds, results


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
