"""Progress where there is no terminal: a line every ten seconds, and after these a last one."""

import io

import pytest
from rich.console import Console

from attnspec.conformance.running import progress


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((1, 2, 3), []), ((11, 12, 13), ["1 of 3", "3 of 3"]), ((11, 22, 33), ["1 of 3", "2 of 3", "3 of 3"])],
)
def test_lines(seconds: tuple[int, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic", lambda: now[-1])
    written = io.StringIO()
    bar = progress.Bar(Console(file=written), "judging", total=3)
    for done, second in enumerate(seconds, 1):
        now.append(second)
        bar.count(f"{done} of 3")
    assert written.getvalue().splitlines() == expected
