"""The examples on which a law is checked depend on the seed alone, not on which other laws are selected or fail."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, governing_laws, judge
from attnspec.conformance.judging.profiles import Effort, Profile
from attnspec.conformance.judging.results import Result, Status
from attnspec.spec import LAWS, OPERATIONS

EFFORT = Effort(corners=5, drawn=14, stride=3, costly=2, work=2.0**8)
"""More than 10 drawn examples: from the 11th on, Hypothesis follows the error ratio."""

OPERATION = "dot_scores"


def scores(query: Any, key: Any) -> Any:
    """Wrong for more than two keys, and so that the error grows with their number."""
    result = reference.dot_scores(query, key)
    result[..., 2:] *= 1 + result.shape[-1]
    return result


WRONG = SimpleNamespace(name="wrong", dot_scores=scores)
RIGHT = SimpleNamespace(name="right", dot_scores=reference.dot_scores)


def tried(backend: Any, *laws: str, skip: Sequence[str] = ()) -> tuple[dict[str, list[Example]], Mapping[str, Result]]:
    """The examples on which each law is checked, and the verdicts."""
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(OPERATION,), laws=laws, dtypes=("float64",))
    seen: dict[str, list[Example]] = {}

    def mark(law: str, example: Any) -> None:
        if isinstance(example, Example):
            seen.setdefault(law, []).append(example)

    known = {law: Result(OPERATION, law, "float64", Status.FAILED, "crashed") for law in skip}
    profile = Profile(EFFORT, EFFORT, EFFORT)
    results = judge(backend, contract, case, profile, seed=3, mark=mark, skip=known)
    return seen, {r.law: r for r in results}


@pytest.mark.parametrize("backend", [RIGHT, WRONG], ids=lambda x: x.name)
def test_a_law_alone_sees_the_examples_of_the_whole_run(backend: Any) -> None:
    everything, verdicts = tried(backend)
    governing = governing_laws(OPERATIONS[OPERATION])
    assert set(verdicts) == set(governing)
    for law in governing:
        if law == "operation.oracle":
            continue  # it guides the others' examples, so that it is marked more than once
        seen, results = tried(backend, law)
        assert seen.get(law) == everything.get(law), law
        assert results[law] == verdicts[law]


def test_a_law_sees_the_same_examples_whatever_has_failed_before() -> None:
    law = "attention.permutation"
    everything, _ = tried(RIGHT)
    assert len(everything[law]) >= 5
    first = governing_laws(OPERATIONS[OPERATION])[0]
    assert tried(RIGHT, skip=[first])[0][law] == everything[law]
    assert tried(RIGHT, law, first, skip=[first])[0][law] == everything[law]


def test_places_are_those_among_all_laws_that_govern_the_operation() -> None:
    operation = OPERATIONS[OPERATION]
    assert governing_laws(operation) == tuple(i for i, law in LAWS.items() if operation in law.operations)
    chosen = cases(Contract.of(RIGHT), operations=(OPERATION,), laws=("operation.shape", "operation.dtype"))
    assert {case.laws for case in chosen} == {("operation.shape", "operation.dtype")}


def test_drawn_examples_follow_the_formula_though_it_is_not_selected() -> None:
    seen, _ = tried(RIGHT, "scoring.isometry")
    assert len(seen["operation.oracle"]) == EFFORT.drawn
    unguided, _ = tried(RIGHT, "scoring.isometry", skip=["operation.oracle"])
    assert "operation.oracle" not in unguided
