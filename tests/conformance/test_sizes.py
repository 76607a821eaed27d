"""Large sizes: which rows are judged, and the backends that are wrong beyond some size."""

from typing import Any

import numpy as np
import pytest

from attnspec.backends.bases.numpy import NumPyBackend
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases
from attnspec.conformance.judging.engine import judge as judged
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.judging.rows import judge, sampled
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.running.trials import Task, perform
from attnspec.spec import Limits
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS

DOT = OPERATIONS["dot_scores"]
CLASSES = ("rows of a buffer for 512 keys", "192 features rounded down", "keys of the first element from the fifth on")


def test_rows_are_the_first_the_last_those_at_borders_and_others() -> None:
    for seed in range(20):
        rows = sampled(3000, 24, np.random.default_rng(seed))
        assert len(rows) == len(set(rows)) == 24
        assert {0, 2999} <= set(rows)
        assert sum(row % 16 in (0, 15) for row in rows) >= 12
        assert sum(row % 16 not in (0, 15) for row in rows) >= 4
    assert list(sampled(5, 24, np.random.default_rng(0))) == list(range(5))
    found = {int(row) for seed in range(400) for row in sampled(300, 24, np.random.default_rng(seed))}
    assert len(found) == 300


class Dots(NumPyBackend):
    """Scores, wrong in one row of one element of the batch if there is one; with limits."""

    name = "dots"
    limits = Limits(dtypes=("float32",), head_sizes=(4, 64), max_length=200, max_batch_dims=1, broadcasting=False)
    wrong: tuple[int, int] | None = None

    def dot_scores(self, query: Any, key: Any) -> Any:
        if query.shape[-1] != key.shape[-1] or query.shape[:-2] != key.shape[:-2]:
            raise ValueError("sizes differ")
        found = np.array(query @ key.swapaxes(-1, -2), query.dtype)
        if self.wrong is not None:
            found[self.wrong] += 1
        return found


@pytest.mark.parametrize("element", range(6))
@pytest.mark.parametrize("row", [0, 199])
def test_rows_of_every_element_are_judged(element: int, row: int) -> None:
    backend = Dots()
    subject = Subject(backend, Contract.of(backend), DOT, "float32", "cpu")
    q, k = (np.random.default_rng(i).standard_normal((6, n, 4)).astype(np.float32) for i, n in enumerate((200, 3)))
    assert judge(subject, Arguments(DOT, {"query": q, "key": k}), np.random.default_rng(0))
    assert subject.not_judged == 6 * (200 - 24) * 3
    backend.wrong = element, row
    with pytest.raises(Violation, match="in 24 of 200 rows"):
        judge(subject, Arguments(DOT, {"query": q, "key": k}), np.random.default_rng(0))


@pytest.mark.parametrize("name", CLASSES)
def test_wrong_backends_are_convicted_in_full(name: str) -> None:
    m = MUTANTS[name]
    outcome = perform(Task(m, "full", 0, operation=m.operations[0]))
    assert {failure.law for failure in outcome.failures} & set(m.breaks)


def test_an_honest_backend_is_judged_within_its_limits() -> None:
    backend = Dots()
    contract = Contract.of(backend)
    (case,) = cases(contract, laws=[law for law in LAWS if law.startswith("sizes.")])
    found = {r.law: r.status for r in judged(backend, contract, case, PROFILES["full"])}
    assert Status.FAILED not in found.values()
    assert found["sizes.features"] is Status.PASSED
