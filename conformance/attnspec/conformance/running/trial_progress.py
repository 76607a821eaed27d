"""Progress of trials: a bar in a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attnspec.conformance.mutants import Mutant
from attnspec.conformance.running.progress import LINE_SECONDS
from attnspec.conformance.running.trials import LOST, Outcome, Task
from attnspec.conformance.variants import Variant


class TrialProgress:
    """A bar that shows how many trials have ended, without a terminal a line now and then.

    A variant that is harmed and a mutant that survives are named at once.
    """

    def __init__(self, total: int, console: Console) -> None:
        self._console, self._total, self._ended, self._last = console, total, 0, time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task("judging", total=total)

    def __enter__(self) -> "TrialProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def done(self, task: Task, outcome: Outcome) -> None:
        """Count a trial."""
        name, wrong = escape(task.subject.name), outcome.convicts
        if wrong and isinstance(task.subject, Variant):
            law = outcome.failures[0].law if outcome.failures else LOST
            self._console.print(f"[red]harmed[/red] {name} at seed {task.seed}: {law}")
        elif not wrong and isinstance(task.subject, Mutant):
            self._console.print(f"[red]survives[/red] {name} at seed {task.seed}")
        self._ended += 1
        self._bar.advance(self._task)
        if not self._console.is_terminal and time.monotonic() - self._last > LINE_SECONDS:
            self._last = time.monotonic()
            self._console.print(f"{self._ended} of {self._total} trials judged")
