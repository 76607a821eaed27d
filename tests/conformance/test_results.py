"""Results without the structure of the Protocol, which every law reports alike."""

from types import SimpleNamespace
from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.judging.violation import Reason


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (list, "result: expected a tuple; got list"),
        (lambda pair: pair[0], "result: expected a tuple; got ndarray"),
        (lambda pair: (*pair, pair[0]), "result: expected a tuple of 2; got one of 3"),
    ],
    ids=["list", "one-array", "three-arrays"],
)
def test_a_result_of_another_structure_is_named_by_every_law(wrong: Any, message: str) -> None:
    def lstm_cell(*args: Any, **kwargs: Any) -> Any:
        return wrong(reference.lstm_cell(*args, **kwargs))

    backend = SimpleNamespace(name="wrong", lstm_cell=lstm_cell)
    contract = Contract.of(backend)
    laws = (
        "operation.oracle",
        "operation.no-mutation",
        "operation.independent-of-other-calls",
        "storage.views-equal-copies",
    )
    (case,) = cases(contract, dtypes=("float64",), laws=laws)
    results = judge(backend, contract, case, PROFILES["quick"])
    assert [r.status for r in results] == [Status.FAILED] * len(laws)
    assert {(r.reason, r.message) for r in results} == {(Reason.TYPE, f"the result has another structure: {message}")}
