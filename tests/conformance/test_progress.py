"""Progress without a terminal: a line every ten seconds, and one at the end."""

import io

import pytest
from rich.console import Console

from attnspec.conformance.running import progress


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((1, 2, 3), []), ((11, 12, 13), ["1 of 3", "3 of 3"]), ((11, 22, 33), ["1 of 3", "2 of 3", "3 of 3"])],
)
def test_progress_is_printed_every_ten_seconds(
    seconds: tuple[int, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [0]  # of the clock: the last one is the time
    monkeypatch.setattr("time.monotonic", lambda: readings[-1])
    output = io.StringIO()
    bar = progress.Bar(Console(file=output), "judging", total=3)
    for count, second in enumerate(seconds, 1):
        readings.append(second)
        bar.count(f"{count} of 3")
    assert output.getvalue().splitlines() == expected
