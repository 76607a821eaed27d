"""What the backend must reach, as ratios within one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.case import OURS
from benchmarks.results import Measurement, Run, best_of_others, ratio
from benchmarks.suites.scaled_dot_product import PLAIN
from benchmarks.timing import slope

Group = Sequence[Measurement]


@dataclass(frozen=True)
class Floor:
    """A number that must not be less than ``least``. ``number`` gives None where it cannot be computed."""

    what: str
    suite: str
    applies: Callable[[Measurement], bool]
    number: Callable[[Group], float | None]
    least: float


def _one_thread(case: Measurement, mode: str, *sizes: int) -> bool:
    return case.threads == 1 and case.mode == mode and case.size in sizes


def _peak_below(mebibytes: float) -> Callable[[Group], float | None]:
    def number(group: Group) -> float | None:
        peaks = [m.peak_bytes for m in group if m.subject == OURS and m.peak_bytes is not None]
        return mebibytes * 2**20 / max(peaks[0], 1) if peaks else None

    return number


def _against(subject: str) -> Callable[[Group], float | None]:
    return lambda group: ratio(group, OURS, subject)


def _against_best(group: Group) -> float | None:
    best = best_of_others(group, OURS)
    return None if best is None else ratio(group, OURS, best.subject)


FORWARD, BOTH = "forward", "forward+backward"
FLOORS = (
    Floor("forward, times eager", "additive", lambda c: _one_thread(c, FORWARD, 512, 1024), _against("eager"), 50),
    Floor("forward and backward, times eager", "additive", lambda c: _one_thread(c, BOTH, 512), _against("eager"), 25),
    Floor("times torch.compile", "additive", lambda c: _one_thread(c, FORWARD, 512), _against("torch.compile"), 6),
    Floor("times torch.compile", "additive", lambda c: _one_thread(c, BOTH, 512), _against("torch.compile"), 10),
    Floor("110 MiB over the peak", "additive", lambda c: _one_thread(c, BOTH, 1024), _peak_below(110), 1),
    Floor("step, times eager", "step", lambda c: _one_thread(c, FORWARD, 512), _against("eager"), 30),
    Floor("times PyTorch's best", "sdpa", lambda c: True, _against_best, 0.97),
    Floor(
        "boolean causal mask, times F.sdpa", "sdpa", lambda c: c.case == "boolean causal" and c.size == 2048,
        _against(PLAIN), 1.8,
    ),
    Floor("padding, times F.sdpa", "sdpa", lambda c: c.case == "padding" and c.size >= 512, _against(PLAIN), 1.3),
)  # fmt: skip


def missed(run: Run) -> list[str]:
    """One line for every floor that is not reached by a case of the run."""
    lines = []
    for group in run.groups():
        for floor in FLOORS:
            if group[0].suite == floor.suite and floor.applies(group[0]):
                number = floor.number(group)
                if number is not None and number < floor.least:
                    lines.append(
                        f"{title(group[0])}: {floor.what}: expected at least {floor.least:g}, got {number:.3g}"
                    )
    return lines + _growth(run)


def _growth(run: Run) -> list[str]:
    """Additive attention grows linearly in n·m: from 512 on, the exponent of n is 2, within a tenth."""
    lines = []
    for threads in sorted({m.threads for m in run.measurements}):
        for mode in (FORWARD, BOTH):
            points = [
                (m.size, m.seconds) for m in run.measurements
                if (m.suite, m.subject, m.mode, m.threads) == ("additive", OURS, mode, threads)
                and m.seconds is not None and m.size >= 512
            ]  # fmt: skip
            if len(points) > 1:
                p = slope([float(n) for n, _ in points], [s for _, s in points])
                if p > 2.2:
                    lines.append(f"additive, {mode}, {threads} threads: time grows as n^{p:.2f}, expected n^2")
    return lines


def title(m: Measurement) -> str:
    """A case in words."""
    sizes = ", ".join(f"{k}={v}" for k, v in m.sizes.items())
    return f"{m.suite}: {m.case}, {m.mode}, {sizes}" + (f", {m.threads} threads" if m.threads else "")
