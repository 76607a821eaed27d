"""No test of the suite passes while attnspec has an error of its own: a note beside a verdict would hide it."""

from collections.abc import Iterator

import pytest

import attnspec.conformance.laws  # noqa: F401 - the modules of the laws register their checks
from attnspec.conformance.judging import own_errors


@pytest.fixture(autouse=True)
def no_own_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which an error of attnspec was contained, but for those that inject one."""
    contained: list[str] = []
    said = own_errors.own_error

    def own_error(stage: str, error: Exception) -> str:
        contained.append(said(stage, error))
        return contained[-1]

    monkeypatch.setattr(own_errors, "own_error", own_error)
    yield
    if not request.module.__name__.endswith("test_own_errors"):
        assert contained == []
