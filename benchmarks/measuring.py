"""Measuring one case: subjects are made, found right or wrong, and timed in turns."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.case import Case, Thunk
from benchmarks.memory import peak_on_cpu, peak_on_cuda
from benchmarks.results import Measurement
from benchmarks.suites.settings import Settings
from benchmarks.timing import interleaved, timed

ALLOWED = 16.0
"""How many times the error of the baseline a subject's may be: reordered sums differ by a few."""


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
    why_not, calls, firsts, errors = {}, {}, {}, {}
    exact = case.exact()
    for subject in case.subjects:
        note(f"{case.key}: {subject.name}")
        if subject.absent:
            why_not[subject.name] = f"absent: {subject.absent}"
            continue
        try:
            call, firsts[subject.name], errors[subject.name] = _first(subject.make, case, exact, settings.device)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError) as error:
            why_not[subject.name] = f"failed: {(str(error).splitlines() or [''])[0]}"
            continue
        calls[subject.name] = call
    allowed = ALLOWED * max(errors.get(case.baseline, 0.0), torch.finfo(torch.float32).eps)
    for name in [n for n, error in errors.items() if not error <= allowed]:
        why_not[name] = f"wrong: error {errors[name]:.1e}, allowed {allowed:.1e}"
        del calls[name]
    times = interleaved(calls, firsts, rounds=rounds, seconds=seconds, device=settings.device)
    peaks: dict[str, Any] = {}
    for name in calls if memory and case.memory else ():
        note(f"{case.key}: memory of {name}")
        if settings.device == "cpu":
            arguments = {"sizes": settings.sizes or [case.size], "quick": settings.quick}
            peaks[name] = peak_on_cpu(case.suite, case.key, name, threads, arguments)
        else:
            peaks[name] = peak_on_cuda(calls[name])
    found = []
    for subject in case.subjects:
        name = subject.name
        t, peak = times.get(name), peaks.get(name)
        found.append(
            Measurement(
                case.suite, case.name, case.mode, dict(case.sizes), case.size, threads, name, case.baseline,
                case.work, case.unit, case.ceiling, why_not.get(name, ""),
                None if t is None else t.median, None if t is None else t.quartiles,
                None if t is None else t.first, 0 if t is None else len(t.samples), errors.get(name),
                peak if isinstance(peak, int) else None, peak if isinstance(peak, str) else "",
            )
        )  # fmt: skip
    return found


def _first(make: Callable[[], Thunk], case: Case, exact: torch.Tensor, device: str) -> tuple[Thunk, float, float]:
    """The call, how long making and calling it took at first, and the largest error relative to the largest number."""
    made: list[Thunk] = []
    outputs: list[torch.Tensor] = []

    def both() -> None:
        made.append(make())
        outputs.append(made[0]()[0])

    seconds = timed(both, device)
    part = case.part(outputs[0].detach()).double()
    error = float((part - exact.detach()).abs().max() / exact.detach().abs().max())
    return made[0], seconds, error
