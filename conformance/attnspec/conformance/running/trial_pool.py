"""A pool of processes for trials. A process that hangs or dies is lost with its task alone, and the others go on."""

import faulthandler
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from attnspec.conformance.remote.environment import ONE_THREAD, environment
from attnspec.conformance.running.trials import Failure, Outcome, Task, perform


def outcomes(
    tasks: Sequence[Task],
    workers: int,
    limit: float,
    done: Callable[[Task, Outcome], None] = lambda task, outcome: None,
) -> list[Outcome]:
    """Outcomes of all tasks, in their order; with no workers, in this very process.

    A task that takes longer than ``limit`` seconds is lost. ``done`` is called for each task as it ends.
    """
    found: dict[int, Outcome] = {}

    def settle(number: int, outcome: Outcome) -> None:
        found[number] = outcome
        done(tasks[number], outcome)

    if workers == 0:
        for number, task in enumerate(tasks):
            settle(number, perform(task))
    else:
        with environment(ONE_THREAD), tempfile.TemporaryDirectory() as marks:
            _run_all(tasks, workers, limit, Path(marks), found, settle)
    return [found[number] for number in range(len(tasks))]


def _run_all(
    tasks: Sequence[Task],
    workers: int,
    limit: float,
    marks: Path,
    found: Mapping[int, Outcome],
    settle: Callable[[int, Outcome], None],
) -> None:
    """Run tasks until each has an outcome; what was running when a process died runs again, alone."""
    waiting = list(range(len(tasks)))
    while waiting:
        _run_in_pool(tasks, waiting, workers, limit, marks, settle)
        suspects = sorted(int(p.name) for p in marks.iterdir())
        for number in suspects:
            (marks / str(number)).unlink()
            if number not in found:
                _run_in_pool(tasks, [number], 1, limit, marks, settle)
                if number not in found:
                    settle(number, Outcome((), 0, limit, lost=True))
                (marks / str(number)).unlink(missing_ok=True)
        waiting = [number for number in waiting if number not in found]


def _run_in_pool(
    tasks: Sequence[Task],
    numbers: Sequence[int],
    workers: int,
    limit: float,
    marks: Path,
    settle: Callable[[int, Outcome], None],
) -> None:
    """Run some tasks in one pool, until all have ended or one of its processes has died."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(min(workers, len(numbers)), mp_context=context) as pool:
        futures: dict[Future[Outcome], int] = {
            pool.submit(_perform_marked, tasks[number], number, str(marks), limit): number for number in numbers
        }
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    settle(futures[future], future.result())
                elif not isinstance(error, BrokenProcessPool):
                    # What a backend raised and no check expected.
                    (marks / str(futures[future])).unlink(missing_ok=True)
                    failure = Failure("", "", "an exception that no check expected", type(error).__name__, str(error))
                    settle(futures[future], Outcome((failure,), 0, 0.0))
        finally:
            # Where ``settle`` raises, what waits is not run first.
            pool.shutdown(wait=False, cancel_futures=True)


def _perform_marked(task: Task, number: int, marks: str, limit: float) -> Outcome:
    """In a process of the pool: mark a task while it runs, and end the process when it takes too long."""
    mark = Path(marks) / str(number)
    mark.touch()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
        try:
            outcome = perform(task)
        finally:
            faulthandler.cancel_dump_traceback_later()
    mark.unlink()
    return outcome
