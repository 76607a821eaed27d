"""A process pool for trials: a process that hangs or dies loses one."""

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
from attnspec.conformance.running.trials import Failure, Trial, TrialOutcome, run_trial


def outcomes(
    trials: Sequence[Trial],
    workers: int,
    limit: float,
    done: Callable[[Trial, TrialOutcome], None] = lambda trial, outcome: None,
) -> list[TrialOutcome]:
    """Return the outcomes of all trials in order; with ``workers=0``, run them in this process, without limit.

    A trial that takes longer than ``limit`` seconds is lost. ``done`` is called for each trial as it ends.
    """
    ended: dict[int, TrialOutcome] = {}

    def settle(number: int, outcome: TrialOutcome) -> None:
        ended[number] = outcome
        done(trials[number], outcome)

    if workers == 0:
        for number, trial in enumerate(trials):
            settle(number, run_trial(trial))
        return [ended[number] for number in range(len(trials))]
    with environment(ONE_THREAD), tempfile.TemporaryDirectory() as folder:
        run = partial(_run_in_pool, trials, settle, limit, folder)
        while waiting := [number for number in range(len(trials)) if number not in ended]:
            run(waiting, workers)
            for mark in sorted(Path(folder).iterdir()):
                mark.unlink()
                number = int(mark.name)
                if number not in ended:
                    # A trial that was running when a process died runs again, alone, to find the culprit.
                    run([number], 1)
                    if number not in ended:
                        settle(number, TrialOutcome((), 0, limit, lost=True))
                    mark.unlink(missing_ok=True)
    return [ended[number] for number in range(len(trials))]


def _run_in_pool(
    trials: Sequence[Trial],
    settle: Callable[[int, TrialOutcome], None],
    limit: float,
    marks: str,
    numbers: Sequence[int],
    workers: int,
) -> None:
    """Run trials in one pool until all have ended or a process has died."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(min(workers, len(numbers)), mp_context=context) as pool:
        futures: dict[Future[TrialOutcome], int] = {
            pool.submit(_run_marked, trials[number], Path(marks, str(number)), limit): number for number in numbers
        }
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    settle(futures[future], future.result())
                elif not isinstance(error, BrokenProcessPool):
                    # A backend raised an exception that no check expected: the trial fails.
                    Path(marks, str(futures[future])).unlink(missing_ok=True)
                    failure = Failure("", "", "an exception that no check expected", type(error).__name__, str(error))
                    settle(futures[future], TrialOutcome((failure,), 0, 0.0))
        finally:
            # If ``settle`` raises, waiting trials are cancelled.
            pool.shutdown(wait=False, cancel_futures=True)


def _run_marked(trial: Trial, mark: Path, limit: float) -> TrialOutcome:
    """Run a trial, marked while it runs; end the process after ``limit``."""
    mark.touch()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
        try:
            outcome = run_trial(trial)
        finally:
            faulthandler.cancel_dump_traceback_later()
    mark.unlink()
    return outcome
