"""A law's examples depend on the seed alone, not on other laws of the run."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.cases import cases, governing_laws
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import Effort, Profile
from attnspec.conformance.judging.results import Result, Status
from attnspec.spec import LAWS, OPERATIONS

EFFORT = Effort(corners=5, drawn=14, stride=3, slow_stride=2, work=2.0**8)
"""More than 10 drawn examples: from the 11th on, Hypothesis follows the error ratio."""

OPERATION = "dot_scores"


def scores(query: Any, key: Any) -> Any:
    """Dot scores, wrong from the third key on, with errors that grow with the keys."""
    result = reference.dot_scores(query, key)
    result[..., 2:] *= 1 + result.shape[-1]
    return result


WRONG = SimpleNamespace(name="wrong", dot_scores=scores)
RIGHT = SimpleNamespace(name="right", dot_scores=reference.dot_scores)


def examples_by_law(
    backend: Any, *laws: str, skip: Sequence[str] = ()
) -> tuple[dict[str, list[Example]], Mapping[str, Result]]:
    """The examples on which each law is checked, and the verdicts."""
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(OPERATION,), laws=laws, dtypes=("float64",))
    examples: dict[str, list[Example]] = {}

    def mark(law: str, example: Any) -> None:
        if isinstance(example, Example):
            examples.setdefault(law, []).append(example)

    skipped = {law: Result(OPERATION, law, "float64", Status.FAILED, "crashed") for law in skip}
    profile = Profile(EFFORT, EFFORT, EFFORT)
    results = judge(backend, contract, case, profile, seed=3, mark=mark, skip=skipped)
    return examples, {r.law: r for r in results}


@pytest.mark.parametrize("backend", [RIGHT, WRONG], ids=lambda x: x.name)
def test_a_law_judged_alone_gets_the_examples_of_the_whole_run(backend: Any) -> None:
    everything, verdicts = examples_by_law(backend)
    governing = governing_laws(OPERATIONS[OPERATION])
    assert set(verdicts) == set(governing)
    for law in governing:
        if law == "operation.oracle":
            continue  # it guides the examples of other laws, so it is marked more than once
        examples, results = examples_by_law(backend, law)
        assert examples.get(law) == everything.get(law), law
        assert results[law] == verdicts[law]


def test_a_law_gets_the_same_examples_whichever_laws_have_failed() -> None:
    law = "attention.permutation-equivariance"
    everything, _ = examples_by_law(RIGHT)
    assert len(everything[law]) >= 5
    first = governing_laws(OPERATIONS[OPERATION])[0]
    assert examples_by_law(RIGHT, skip=[first])[0][law] == everything[law]
    assert examples_by_law(RIGHT, law, first, skip=[first])[0][law] == everything[law]


def test_governing_laws_do_not_depend_on_the_selection() -> None:
    operation = OPERATIONS[OPERATION]
    assert governing_laws(operation) == tuple(i for i, law in LAWS.items() if operation in law.operations)
    chosen = cases(Contract.of(RIGHT), operations=(OPERATION,), laws=("operation.shape", "operation.dtype"))
    assert {case.laws for case in chosen} == {("operation.shape", "operation.dtype")}


def test_the_formula_guides_drawn_examples_even_if_not_selected() -> None:
    examples, _ = examples_by_law(RIGHT, "scoring.isometry-invariance")
    assert len(examples["operation.oracle"]) == EFFORT.drawn
    unguided, _ = examples_by_law(RIGHT, "scoring.isometry-invariance", skip=["operation.oracle"])
    assert "operation.oracle" not in unguided
