"""How far a run is: a bar on a terminal, elsewhere a line for each case."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column


class Announced:
    """Cases as they begin, ``[3/40]``; on a terminal also what is done with the one at hand."""

    def __init__(self, console: Console) -> None:
        # the text alone gives way where the terminal is narrow
        text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), text)
        self.progress = Progress(
            *columns, console=console, transient=True, expand=True, disable=not console.is_terminal
        )  # fmt: skip
        self.task = self.progress.add_task("", total=None)
        self.begun, self.total, self.title = 0, 0, ""

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def expect(self, cases: int) -> None:
        """So many cases will follow."""
        self.total = cases
        self.progress.update(self.task, total=cases)

    def preparation(self, title: str) -> None:
        """Something begins that is no case."""
        self.title = title
        self.note("")
        self._line(title)

    def case(self, title: str) -> None:
        """The next case begins, and the ones before are done."""
        self.progress.update(self.task, completed=self.begun)
        self.begun, self.title = self.begun + 1, title
        self.note("")
        self._line(f"[{self.begun}/{self.total}] {title}")

    def note(self, step: str) -> None:
        """What is done now."""
        self.progress.update(self.task, description=f"{step} · {self.title}" if step else self.title)

    def _line(self, text: str) -> None:
        console = self.progress.console
        if not console.is_terminal:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
