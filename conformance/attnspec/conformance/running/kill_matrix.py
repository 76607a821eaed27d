"""The kill matrix: every mutant must be killed, and no honest variant harmed.

Each mutant and each variant is judged in a process of a pool, over as many seeds as are asked for. A process that hangs
or dies is a verdict on what it was judging, and the others go on.
"""

import faulthandler
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnspec.conformance.judging.engine import Case, cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Contract
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.variants import VARIANTS, Variant

SCHEMA = "attnspec-mutants/1"

SECONDS = {"quick": 120.0, "full": 1200.0, "release": 7200.0}
"""After which a task counts as hung."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """One backend at one seed.

    ``law`` is the only law to judge by, ``operation`` the only operation, empty for all of them. A variant is judged to
    the end, and so is a mutant with ``every``; without, the first violation will do.
    """

    subject: Mutant | Variant
    profile: str
    seed: int
    law: str = ""
    operation: str = ""
    every: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    ``failures`` are the laws that failed, each as ``(operation, dtype, law, reason, message)``; ``evaluations`` counts
    checks on examples; ``lost`` says that the process hung or died.
    """

    failures: tuple[tuple[str, str, str, str, str], ...]
    evaluations: int
    seconds: float
    largest: float = 0.0
    lost: bool = False


def perform(task: Task) -> Outcome:
    """Judge a mutant up to the first violation, or a variant by everything."""
    start = time.perf_counter()
    subject = task.subject
    every = task.every or isinstance(subject, Variant)
    contract = Contract.of(subject.backend())
    chosen = cases(
        contract,
        operations=(task.operation,) if task.operation else subject.operations,
        laws=(task.law,) if task.law else (),
        dtypes=(subject.dtype,) if isinstance(subject, Mutant) else subject.dtypes,
    )
    failures: list[tuple[str, str, str, str, str]] = []
    evaluations, largest = 0, 0.0
    for case in chosen:
        results = _judged(subject, contract, case, task, every)
        evaluations += sum(r.examples for r in results)
        largest = max((largest, *(r.error_ratio for r in results if r.status is Status.PASSED)))
        failures += [_failure(r) for r in results if r.status is Status.FAILED]
        if failures and not every:
            break
    return Outcome(tuple(failures), evaluations, time.perf_counter() - start, largest)


def _judged(subject: Mutant | Variant, contract: Contract, case: Case, task: Task, every: bool) -> list[Result]:
    """Verdicts without counterexamples: up to the first violation, again without the laws that failed if wanted."""
    failed: dict[str, Result] = {}
    while True:
        results = judge(
            subject.backend(),
            contract,
            case,
            PROFILES[task.profile],
            seed=task.seed,
            skip=failed,
            stop_at_first=True,
        )
        now = {r.law: r for r in results if r.status is Status.FAILED}
        if not every or len(now) == len(failed):
            return results
        failed = now


def _failure(result: Result) -> tuple[str, str, str, str, str]:
    return result.operation, result.dtype, result.law, result.reason or "", result.message


# Processes -----------------------------------------------------------------------------------------------------------


def _in_process(task: Task, number: int, marks: str, limit: float) -> Outcome:
    """In a worker: perform a task, leave a mark while it runs, and end the process when it takes too long."""
    mark = Path(marks) / str(number)
    mark.touch()
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
        try:
            outcome = perform(task)
        finally:
            faulthandler.cancel_dump_traceback_later()
    mark.unlink()
    return outcome


def outcomes(
    tasks: Sequence[Task],
    workers: int,
    limit: float,
    done: Callable[[Task, Outcome], None] = lambda task, outcome: None,
) -> list[Outcome]:
    """Outcomes of all tasks, in their order; with no workers, in this very process."""
    found: dict[int, Outcome] = {}

    def settle(number: int, outcome: Outcome) -> None:
        found[number] = outcome
        done(tasks[number], outcome)

    if workers == 0:
        for number, task in enumerate(tasks):
            settle(number, perform(task))
    else:
        with _one_thread(), tempfile.TemporaryDirectory() as marks:
            _in_pool(tasks, workers, limit, Path(marks), found, settle)
    return [found[number] for number in range(len(tasks))]


def _in_pool(
    tasks: Sequence[Task],
    workers: int,
    limit: float,
    marks: Path,
    found: Mapping[int, Outcome],
    settle: Callable[[int, Outcome], None],
) -> None:
    """Run tasks until each has an outcome; whoever was running when a process died runs again, alone."""
    waiting = list(range(len(tasks)))
    while waiting:
        _attempt(tasks, waiting, workers, limit, marks, settle)
        suspects = sorted(int(p.name) for p in marks.iterdir())
        for number in suspects:
            (marks / str(number)).unlink()
            if number not in found:
                _attempt(tasks, [number], 1, limit, marks, settle)
                if number not in found:
                    settle(number, Outcome((), 0, limit, lost=True))
                (marks / str(number)).unlink(missing_ok=True)
        waiting = [number for number in waiting if number not in found]


def _attempt(
    tasks: Sequence[Task],
    numbers: Sequence[int],
    workers: int,
    limit: float,
    marks: Path,
    settle: Callable[[int, Outcome], None],
) -> None:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(min(workers, len(numbers)), mp_context=context) as pool:
        futures: dict[Future[Outcome], int] = {
            pool.submit(_in_process, tasks[number], number, str(marks), limit): number for number in numbers
        }
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                settle(futures[future], future.result())
            elif not isinstance(error, BrokenProcessPool):
                # What a backend raised and no check expected.
                (marks / str(futures[future])).unlink(missing_ok=True)
                failure = ("", "", "an exception that no check expected", type(error).__name__, str(error))
                settle(futures[future], Outcome((failure,), 0, 0.0))


class _one_thread:
    """Environment in which processes are started with one thread of linear algebra each."""

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in _THREADS}
        os.environ.update(dict.fromkeys(_THREADS, "1"))

    def __exit__(self, *error: object) -> None:
        for name, value in self.before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# What was found ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What became of one mutant or variant over all seeds."""

    subject: Mutant | Variant
    outcomes: Sequence[Outcome]

    @property
    def kills(self) -> int:
        """At how many seeds something was wrong."""
        return sum(bool(o.failures) or o.lost for o in self.outcomes)

    @property
    def evaluations(self) -> int:
        """Checks on examples, over all seeds."""
        return sum(o.evaluations for o in self.outcomes)

    @property
    def largest(self) -> float:
        """The largest error ratio of laws that held."""
        return max((o.largest for o in self.outcomes), default=0.0)

    @property
    def laws(self) -> dict[str, int]:
        """The laws that failed, with the number of seeds at which they did, most often first."""
        counts: dict[str, int] = {}
        for o in self.outcomes:
            for law in {f[2] for f in o.failures} | ({"hung or died"} if o.lost else set()):
                counts[law] = counts.get(law, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def main_mutants(
    profile: str,
    seeds: int,
    matrix: bool,
    workers: int | None,
    json_path: Path | None,
    console: Console,
    *,
    mutants: Mapping[str, Mutant] = MUTANTS,
    variants: Mapping[str, Variant] = VARIANTS,
) -> int:
    """Judge all mutants and variants and print what became of them.

    ``workers``: processes, None for one per core, 0 for none (everything in this process). ``matrix`` goes on after the
    first violation and finds every law that kills a mutant. Returns 0 if every mutant was killed at every seed and no
    variant was harmed, else 1.
    """
    count = os.cpu_count() or 1 if workers is None else workers
    subjects: list[Mutant | Variant] = [*mutants.values(), *variants.values()]
    tasks = [Task(subject, profile, seed) for seed in range(seeds) for subject in sorted(subjects, key=_cost)]
    if matrix:
        tasks = [replace(task, every=True) for task in tasks]
    found = _with_progress(tasks, count, SECONDS[profile], console)
    by_name: dict[str, list[Outcome]] = {}
    for task, outcome in zip(tasks, found, strict=True):
        by_name.setdefault(task.subject.name, []).append(outcome)
    killed = [Row(m, by_name[name]) for name, m in mutants.items()]
    harmed = [Row(v, by_name[name]) for name, v in variants.items()]
    if killed:
        _print_mutants(killed, seeds, console)
        if matrix:
            _print_matrix(killed, seeds, console)
    if harmed:
        _print_variants(harmed, seeds, console)
    well = all(row.kills == seeds for row in killed) and not any(row.kills for row in harmed)
    if json_path is not None:
        json_path.write_text(json.dumps(_report(profile, seeds, matrix, killed, harmed, well), indent=1) + "\n")
    return 0 if well else 1


def _cost(subject: Mutant | Variant) -> float:
    """What takes longest comes first."""
    return isinstance(subject, Mutant)


def _with_progress(tasks: Sequence[Task], workers: int, limit: float, console: Console) -> list[Outcome]:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True) as progress:
        shown = progress.add_task("judging", total=len(tasks))

        def done(task: Task, outcome: Outcome) -> None:
            harm = isinstance(task.subject, Variant) and (outcome.failures or outcome.lost)
            if harm:
                law = outcome.failures[0][2] if outcome.failures else "hung or died"
                progress.console.print(f"[red]harmed[/red] {escape(task.subject.name)} at seed {task.seed}: {law}")
            progress.advance(shown)

        return outcomes(tasks, workers, limit, done)


# Printing ------------------------------------------------------------------------------------------------------------


def _print_mutants(rows: Sequence[Row], seeds: int, console: Console) -> None:
    table = Table(title=f"Mutants: {sum(row.kills == seeds for row in rows)} of {len(rows)} killed at {seeds} seeds")
    for column in ("mutant", "chapter"):
        table.add_column(column, overflow="fold")
    table.add_column("killed", justify="right")
    table.add_column("by (seeds)", overflow="fold")
    table.add_column("checks", justify="right")
    for row in sorted(rows, key=lambda row: (row.kills, row.subject.chapter, row.subject.name)):
        style = "red" if row.kills < seeds else None
        laws = ", ".join(f"{law} ({n})" for law, n in list(row.laws.items())[:3]) or "nothing"
        checks = f"{row.evaluations / max(len(row.outcomes), 1):.0f}"
        table.add_row(escape(row.subject.name), row.subject.chapter, f"{row.kills}/{seeds}", laws, checks, style=style)
    console.print(table)


def _print_matrix(rows: Sequence[Row], seeds: int, console: Console) -> None:
    table = Table(title=f"Which laws kill which mutant, in how many of {seeds} seeds (* assigned)")
    table.add_column("mutant", overflow="fold")
    table.add_column("laws", overflow="fold")
    for row in rows:
        assigned = row.subject.breaks if isinstance(row.subject, Mutant) else ()
        counts = dict.fromkeys(assigned, 0) | row.laws
        ordered = sorted(counts, key=lambda law: (law not in assigned, -counts[law], law))
        shown = ", ".join(f"{'*' if law in assigned else ''}{law} {counts[law]}" for law in ordered)
        weak = any(counts[law] < seeds for law in assigned)
        table.add_row(escape(row.subject.name), shown, style="yellow" if weak else None)
    console.print(table)


def _print_variants(rows: Sequence[Row], seeds: int, console: Console) -> None:
    table = Table(
        title=f"Honest variants: {sum(bool(row.kills) for row in rows)} of {len(rows)} harmed at {seeds} seeds"
    )
    table.add_column("variant", overflow="fold")
    for column in ("checks", "harmed", "largest ratio"):
        table.add_column(column, justify="right")
    table.add_column("by", overflow="fold")
    for row in sorted(rows, key=lambda row: (-row.kills, row.subject.name)):
        by = ", ".join(f"{law} ({n})" for law, n in row.laws.items())
        table.add_row(
            escape(row.subject.name), str(row.evaluations), f"{row.kills}/{seeds}", f"{row.largest:.2f}", by,
            style="red" if row.kills else None,
        )  # fmt: skip
    console.print(table)
    total = sum(row.evaluations for row in rows)
    if total and not any(row.kills for row in rows):
        console.print(f"No false alarm in {total} checks: their rate is below {3 / total:.1e} (95 %).")


def _report(
    profile: str, seeds: int, matrix: bool, killed: Sequence[Row], harmed: Sequence[Row], well: bool
) -> dict[str, Any]:
    total = sum(row.evaluations for row in harmed)
    alarms = sum(row.kills for row in harmed)
    return {
        "schema": SCHEMA,
        "profile": profile,
        "seeds": seeds,
        "matrix": matrix,
        "mutants": [
            {
                "name": row.subject.name,
                "chapter": row.subject.chapter,
                "statement": row.subject.statement,
                "source": row.subject.source if isinstance(row.subject, Mutant) else "",
                "operations": list(row.subject.operations),
                "assigned": list(row.subject.breaks) if isinstance(row.subject, Mutant) else [],
                "killed": row.kills,
                "laws": row.laws,
                "checks": row.evaluations,
            }
            for row in killed
        ],
        "variants": [
            {
                "name": row.subject.name,
                "statement": row.subject.statement,
                "operations": list(row.subject.operations),
                "checks": row.evaluations,
                "harmed": row.kills,
                "laws": row.laws,
                "largest_error_ratio": row.largest,
                "failures": [list(f) for o in row.outcomes for f in o.failures],
            }
            for row in harmed
        ],
        "false_alarm_bound": None if alarms or not total else 3 / total,
        "exit_status": 0 if well else 1,
    }
