"""Large sizes: sampled rows, and backends that are wrong beyond some size."""

from typing import Any

import numpy as np
import pytest

from attnspec.backends.bases.numpy import NumPyBackend
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge as judged
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.judging.sampled_rows import judge_rows, sample_indices
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.spec import Limits
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS

DOT = OPERATIONS["dot_scores"]
DEFECTS = (
    "keys and values read modulo 512",
    "last 64 of 192 features ignored",
    "first element's keys used from the fifth on",
)


def test_sampled_rows_are_the_first_the_last_some_at_tile_borders_and_others() -> None:
    for seed in range(20):
        rows = sample_indices(3000, 24, np.random.default_rng(seed))
        assert len(rows) == len(set(rows)) == 24
        assert {0, 2999} <= set(rows)
        assert sum(row % 16 in (0, 15) for row in rows) >= 12
        assert sum(row % 16 not in (0, 15) for row in rows) >= 4
    assert list(sample_indices(5, 24, np.random.default_rng(0))) == list(range(5))
    all_rows = {int(row) for seed in range(400) for row in sample_indices(300, 24, np.random.default_rng(seed))}
    assert len(all_rows) == 300


class Dots(NumPyBackend):
    """Dot scores with limits; ``wrong`` names a batch element and a row to be changed."""

    name = "dots"
    limits = Limits(dtypes=("float32",), head_sizes=(4, 64), max_length=200, max_batch_dims=1, broadcasting=False)
    wrong: tuple[int, int] | None = None

    def dot_scores(self, query: Any, key: Any) -> Any:
        if query.shape[-1] != key.shape[-1] or query.shape[:-2] != key.shape[:-2]:
            raise ValueError("sizes differ")
        scores = np.array(query @ key.swapaxes(-1, -2), query.dtype)
        if self.wrong is not None:
            scores[self.wrong] += 1
        return scores


@pytest.mark.parametrize("element", range(6))
@pytest.mark.parametrize("row", [0, 199])
def test_rows_of_every_element_are_judged(element: int, row: int) -> None:
    backend = Dots()
    subject = Subject(backend, Contract.of(backend), DOT, "float32", "cpu")
    q, k = (np.random.default_rng(i).standard_normal((6, n, 4)).astype(np.float32) for i, n in enumerate((200, 3)))
    assert judge_rows(subject, Arguments(DOT, {"query": q, "key": k}), np.random.default_rng(0))
    assert subject.not_judged == 6 * (200 - 24) * 3  # elements × rows not sampled × keys
    backend.wrong = element, row
    with pytest.raises(Violation, match="in 24 of 200 rows"):
        judge_rows(subject, Arguments(DOT, {"query": q, "key": k}), np.random.default_rng(0))


@pytest.mark.parametrize("name", DEFECTS)
def test_wrong_backends_are_convicted_in_full(name: str) -> None:
    m = MUTANTS[name]
    outcome = run_trial(Trial(m, "full", 0, operation=m.operations[0]))
    assert {failure.law for failure in outcome.failures} & set(m.breaks)


def test_an_honest_backend_is_judged_within_its_limits() -> None:
    backend = Dots()
    contract = Contract.of(backend)
    (case,) = cases(contract, laws=[law for law in LAWS if law.startswith("sizes.")])
    statuses = {r.law: r.status for r in judged(backend, contract, case, PROFILES["full"])}
    assert Status.FAILED not in statuses.values()
    assert statuses["sizes.model-sizes"] is Status.PASSED
