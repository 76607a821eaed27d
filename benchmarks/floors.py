"""Performance floors of the backend: smallest promised ratios within one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.case import FORWARD, OURS, WITH_BACKWARD
from benchmarks.growth import MIN_SIZE, Growth, growths
from benchmarks.results import Measurement, Run, brief, ceiling_share, fastest_other, speedup, threads_suffix
from benchmarks.suites.never_slower import VALUES
from benchmarks.suites.scaled_dot_product import F_SDPA

Group = Sequence[Measurement]


@dataclass(frozen=True)
class Floor:
    """A promise: in cases that ``applies`` selects, the ratio ``number`` is at least ``least``."""

    what: str
    suite: str
    applies: Callable[[Measurement], bool]
    number: Callable[[Run, Group], float | None]
    least: float


def _one_thread(case: Measurement, mode: str, *sizes: int) -> bool:
    return case.threads == 1 and case.mode == mode and case.size in sizes


def _peak_below(mebibytes: float) -> Callable[[Run, Group], float | None]:
    def number(_: Run, group: Group) -> float | None:
        peaks = [m.peak_bytes for m in group if m.subject == OURS and m.peak_bytes is not None]
        return mebibytes * 2**20 / max(peaks[0], 1) if peaks else None

    return number


def _speedup_over(subject: str) -> Callable[[Run, Group], float | None]:
    return lambda _, group: speedup(group, OURS, subject)


def _speedup_over_fastest(_: Run, group: Group) -> float | None:
    best = fastest_other(group, OURS)
    return None if best is None else speedup(group, OURS, best.subject)


def _share_of_ceiling(run: Run, group: Group) -> float | None:
    ours = next((m for m in group if m.subject == OURS), None)
    return None if ours is None else ceiling_share(run, ours)


def _gain(_: Run, group: Group) -> float | None:
    """Speedup of two threads over one, divided by that of a loop of multiply-adds."""
    return next((m.gain for m in group if m.subject == OURS), None)


SMALL_SECONDS = 100e-6
"""Below this time of the best rival, ours may be longer by a constant."""


def _margin(_: Run, group: Group) -> float | None:
    """Return allowed time / our time; allowed is the best rival's time / 0.95.

    Below ``SMALL_SECONDS`` it is that time plus 20 µs, or 30 µs for additive attention: the cost of looking up a plan.
    """
    best = fastest_other(group, OURS)
    ours = next((m.seconds for m in group if m.subject == OURS), None)
    if best is None or best.seconds is None or ours is None:
        return None
    if best.seconds >= SMALL_SECONDS:
        return best.seconds / 0.95 / ours
    constant = 30e-6 if group[0].case.startswith("additive") else 20e-6
    return (best.seconds + constant) / ours


def _at_usual_values(run: Run, group: Group) -> float | None:
    """Return our time at usual values over our time at unusual ones, such as "sparse": ``VALUES``.

    The kind ends the case's name, after a comma.
    """
    case, _, _ = group[0].case.rpartition(", ")
    usual = next((g for g in run.groups() if g[0].group == replace(group[0], case=case).group), ())
    times = [next((m.seconds for m in cases if m.subject == OURS), None) for cases in (usual, group)]
    return None if times[0] is None or times[1] is None else times[0] / times[1]


FLOORS = (
    Floor("forward, times eager", "additive", lambda c: _one_thread(c, FORWARD, 512, 1024), _speedup_over("eager"), 50),
    Floor("forward and backward, times eager", "additive", lambda c: _one_thread(c, WITH_BACKWARD, 512),
          _speedup_over("eager"), 25),
    Floor("times torch.compile", "additive", lambda c: _one_thread(c, FORWARD, 512), _speedup_over("torch.compile"), 6),
    Floor("times torch.compile", "additive", lambda c: _one_thread(c, WITH_BACKWARD, 512),
          _speedup_over("torch.compile"), 10),
    Floor("forward, part of the rate of multiply-adds", "additive",
          lambda c: c.ceiling == "multiply-adds" and _one_thread(c, FORWARD, 512, 1024, 2048, 4096),
          _share_of_ceiling, 0.6),
    *(Floor("gain of two threads, part of that of multiply-adds", suite, lambda c: c.threads == 2 and c.size >= 256,
            _gain, 0.9) for suite in ("additive", "sdpa")),
    Floor("110 MiB over the peak", "additive", lambda c: _one_thread(c, WITH_BACKWARD, 1024), _peak_below(110), 1),
    Floor("step, times eager", "step", lambda c: _one_thread(c, FORWARD, 512), _speedup_over("eager"), 30),
    # Every call of an LSTM joins the arrays of its gates; this cost is small only beside many steps.
    Floor("times torch.nn", "layers", lambda c: c.case != "LSTM" or c.size >= 1024, _speedup_over("torch.nn"), 0.95),
    Floor("the best rival's time, with what is allowed, over ours", "never_slower", lambda c: True, _margin, 1.0),
    # Out of the range of factorised exponentials, kernels may take three times as long. More, such as ten times, would
    # mean that they compute with subnormal numbers.
    Floor("time at usual values, over time at these", "never_slower", lambda c: c.case.endswith(tuple(VALUES)),
          _at_usual_values, 1 / 3),
    Floor("times PyTorch's best", "groups", lambda c: not c.case.startswith("step"), _speedup_over_fastest, 0.97),
    Floor("window of 256, times F.sdpa", "groups", lambda c: c.case == "window" and c.size == 4096,
          _speedup_over(F_SDPA), 5),
    Floor("step, part of the rate of reading", "groups", lambda c: c.case.startswith("step") and c.size == 4096,
          _share_of_ceiling, 0.8),
    Floor("times PyTorch's best", "sdpa", lambda c: 64 <= c.size <= 4096, _speedup_over_fastest, 0.97),
    Floor(
        "boolean causal mask, times F.sdpa", "sdpa", lambda c: c.case == "boolean causal" and c.size == 2048,
        _speedup_over(F_SDPA), 1.8,
    ),
    Floor(
        "padding, times F.sdpa", "sdpa", lambda c: c.case == "padding" and 512 <= c.size <= 4096,
        _speedup_over(F_SDPA), 1.3,
    ),
)  # fmt: skip


STEEPEST = 1.1
"""Largest exponent p of additive attention's time ~ (n·m)^p; ideal is 1, since its work is proportional to n·m."""


def missed(run: Run) -> list[str]:
    """Return lines on missed floors, wrong subjects, cases without our time, and too steep growth."""
    lines = [
        f"{title(m)}: {m.subject} is {brief(m.not_timed)}"
        for m in run.measurements
        if m.not_timed.startswith("wrong") or (m.subject == OURS and m.not_timed)
    ]
    for group, floor, number in _applicable(run):
        if number is not None and number < floor.least:
            lines.append(f"{title(group[0])}: {floor.what}: expected at least {floor.least:g}, got {number:.3g}")
    for g in _additive_growths(run):
        if g.exponent > STEEPEST:
            case = f"additive: {g.case}, {g.mode}, from {MIN_SIZE} on{threads_suffix(g.threads)}"
            lines.append(f"{case}: time grows as (n·m)^{g.exponent:.2f}, expected at most {STEEPEST:g}")
    return lines


def unchecked(run: Run) -> list[str]:
    """Return lines on floors that this run cannot check: a case or measurement is missing."""
    number_of = [(floor, number) for _, floor, number in _applicable(run)]
    lines = []
    for floor in FLOORS:
        if not any(f is floor for f, _ in number_of):
            lines.append(f"{floor.suite}: {floor.what}: no such case in this run")
        elif any(f is floor and number is None for f, number in number_of):
            lines.append(f"{floor.suite}: {floor.what}: not everything was measured")
    if not _additive_growths(run):
        lines.append(f"additive: growth of time: no two sizes from {MIN_SIZE} on in this run")
    return lines


def _additive_growths(run: Run) -> list[Growth]:
    return [g for g in growths(run) if (g.suite, g.subject) == ("additive", OURS)]


def _applicable(run: Run) -> list[tuple[Group, Floor, float | None]]:
    return [
        (group, floor, floor.number(run, group))
        for group in run.groups()
        for floor in FLOORS
        if group[0].suite == floor.suite and floor.applies(group[0])
    ]


def title(m: Measurement) -> str:
    """Return the name of a case with suite, sizes and threads."""
    sizes = ", ".join(f"{k}={v}" for k, v in m.sizes.items())
    return f"{m.suite}: {m.case}, {m.mode}, {sizes}" + threads_suffix(m.threads)
