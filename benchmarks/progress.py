"""Progress of a run: a bar on a terminal, elsewhere a line per case."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column


class CaseProgress:
    """Counter of started cases, ``[3/40]``; on a terminal it also shows the current step."""

    def __init__(self, console: Console) -> None:
        # on a narrow terminal only the text is shortened
        text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), text)
        self.progress = Progress(
            *columns, console=console, transient=True, expand=True, disable=not console.is_terminal
        )  # fmt: skip
        self.task = self.progress.add_task("", total=None)
        self.started, self.total, self.title = 0, 0, ""

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def expect(self, cases: int) -> None:
        """Set the number of cases."""
        self.total = cases
        self.progress.update(self.task, total=cases)

    def phase(self, title: str) -> None:
        """Start a phase that is not a case."""
        self.title = title
        self.step("")
        self._line(title)

    def case(self, title: str) -> None:
        """Start the next case; all earlier ones count as done."""
        self.progress.update(self.task, completed=self.started)
        self.started, self.title = self.started + 1, title
        self.step("")
        self._line(f"[{self.started}/{self.total}] {title}")

    def step(self, step: str) -> None:
        """Show the current step."""
        self.progress.update(self.task, description=f"{step} · {self.title}" if step else self.title)

    def _line(self, text: str) -> None:
        console = self.progress.console
        if not console.is_terminal:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
