"""Process pool for trials: a process that hangs or dies loses only its own task."""

import faulthandler
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from attnspec.conformance.remote.environment import ONE_THREAD, environment
from attnspec.conformance.running.trials import Failure, Outcome, Task, perform


def outcomes(
    tasks: Sequence[Task],
    workers: int,
    limit: float,
    done: Callable[[Task, Outcome], None] = lambda task, outcome: None,
) -> list[Outcome]:
    """Return the outcomes of all tasks in order; with ``workers=0``, run them in this process.

    A task that takes longer than ``limit`` seconds is lost. ``done`` is called for each task as it ends.
    """
    found: dict[int, Outcome] = {}

    def settle(number: int, outcome: Outcome) -> None:
        found[number] = outcome
        done(tasks[number], outcome)

    if workers == 0:
        for number, task in enumerate(tasks):
            settle(number, perform(task))
        return [found[number] for number in range(len(tasks))]
    with environment(ONE_THREAD), tempfile.TemporaryDirectory() as folder:
        run = partial(_run_in_pool, tasks, settle, limit, folder)
        while waiting := [number for number in range(len(tasks)) if number not in found]:
            run(waiting, workers)
            for mark in sorted(Path(folder).iterdir()):
                mark.unlink()
                number = int(mark.name)
                if number not in found:
                    # A task that ran when a process died runs again, alone.
                    run([number], 1)
                    if number not in found:
                        settle(number, Outcome((), 0, limit, lost=True))
                    mark.unlink(missing_ok=True)
    return [found[number] for number in range(len(tasks))]


def _run_in_pool(
    tasks: Sequence[Task],
    settle: Callable[[int, Outcome], None],
    limit: float,
    marks: str,
    numbers: Sequence[int],
    workers: int,
) -> None:
    """Run tasks in one pool until all have ended or a process has died."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(min(workers, len(numbers)), mp_context=context) as pool:
        futures: dict[Future[Outcome], int] = {
            pool.submit(_perform_marked, tasks[number], Path(marks, str(number)), limit): number for number in numbers
        }
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    settle(futures[future], future.result())
                elif not isinstance(error, BrokenProcessPool):
                    # A backend raised an exception that no check expected.
                    Path(marks, str(futures[future])).unlink(missing_ok=True)
                    failure = Failure("", "", "an exception that no check expected", type(error).__name__, str(error))
                    settle(futures[future], Outcome((failure,), 0, 0.0))
        finally:
            # If ``settle`` raises, waiting tasks are cancelled.
            pool.shutdown(wait=False, cancel_futures=True)


def _perform_marked(task: Task, mark: Path, limit: float) -> Outcome:
    """Run a task in a pool process, marked while it runs; end the process after ``limit``."""
    mark.touch()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
        try:
            outcome = perform(task)
        finally:
            faulthandler.cancel_dump_traceback_later()
    mark.unlink()
    return outcome
