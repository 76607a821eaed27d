"""Messages of violations: their order, possible consequences, and counterexamples."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.judging.causes import by_cause, consequences
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.snippet import readable
from attnspec.conformance.running.messages import MAX_ARGUMENT, MAX_SNIPPET, failure_message, violation_message
from attnspec.spec import LAWS


def failure(law: str, reason: str, observed: str | None = None, operation: str = "softmax", **fields: Any) -> Result:
    return Result(operation, law, "float64", Status.FAILED, reason, "what was seen", observed=observed, **fields)


def example(arguments: dict[str, Any], snippet: str = "sys.exit(1)\n") -> dict[str, Any]:
    return {"arguments": arguments, "expected": 1, "got": 2, "budget": 0.1, "index": [0], "snippet": snippet}


ORACLE = failure("operation.oracle", "value")
SCALE = failure("attention.unbiased-scale", "value")


def test_an_undeclared_choice_is_no_consequence() -> None:
    known_choice = failure("semantics.fully_masked", "declared", "uniform")
    unknown_choice = failure("semantics.no_keys", "declared", "something else")
    accepted, other = (
        failure("operation.rejection", "accepted"),
        failure("attention.unbiased-scale", "value", operation="x"),
    )
    causes, following = by_cause([unknown_choice, SCALE, other, accepted, known_choice, ORACLE])
    assert (causes, following) == ([ORACLE, known_choice, other, accepted], [unknown_choice, SCALE])
    assert consequences([unknown_choice, SCALE, accepted, known_choice]) == []


def test_laws_that_fail_as_the_formula_does_may_be_consequences() -> None:
    raised = failure("operation.oracle", "raised")
    assert consequences([raised, failure("operation.shape", "raised")]) == [failure("operation.shape", "raised")]
    assert consequences([ORACLE, failure("operation.shape", "raised")]) == []


def test_of_equal_causes_those_with_an_input_come_first() -> None:
    without, with_input = (
        failure("operation.shape", "shape"),
        failure("operation.dtype", "dtype", counterexample=example({})),
    )
    other = failure("operation.batch-invariance", "shape")
    assert by_cause([without, with_input, other])[0] == [with_input, other, without]
    follows = failure("operation.batch-invariance", "value", counterexample=example({}))
    assert by_cause([SCALE, ORACLE, follows])[1] == [follows, SCALE]


def test_of_equal_causes_the_law_of_the_fewest_operations_comes_first() -> None:
    generic, chapter, own = (
        failure(law, "value")
        for law in ("operation.batch-invariance", "masking.masked-keys-ignored", "attention.query-key-scale-exchange")
    )
    counts = [len(LAWS[r.law].operations) for r in (own, chapter, generic)]
    assert counts == sorted(set(counts))
    assert by_cause([generic, chapter, own])[0] == [own, chapter, generic]
    assert by_cause([ORACLE, generic, chapter, own])[1] == [own, chapter, generic]


def test_a_test_fails_with_all_violations_and_names_consequences() -> None:
    text = failure_message([SCALE, ORACLE])
    heading = "Possible consequences, which may vanish once operation.oracle holds for softmax:"
    assert text.startswith("operation.oracle is violated")
    assert text.endswith(f"{heading}\n  attention.unbiased-scale: what was seen")
    assert "consequence" not in failure_message([SCALE])


def test_a_message_has_the_law_its_statement_the_input_and_the_snippet() -> None:
    result = failure(
        "operation.oracle", "value", counterexample=example({"query": [[0.5]], "mask": None}, "a = 1\nsys.exit(1)\n")
    )
    assert violation_message(result).splitlines() == [
        "operation.oracle is violated by softmax (float64)",
        f"  {LAWS['operation.oracle'].statement}",
        "  what was seen",
        "  query = [[0.5]]",
        "  mask = None",
        "",
        "    a = 1",
        "    sys.exit(1)",
    ]


@pytest.mark.parametrize("path", ["parameters.w_hz", "layers[0].attention.w_q", "x y"])
def test_an_argument_is_shown_by_any_path(path: str) -> None:
    result = failure("operation.oracle", "value", counterexample=example({path: [1.0]}))
    assert f"  {path} = [1.0]\n" in violation_message(result)


def test_an_array_without_elements_is_shown_by_its_shape() -> None:
    empty = readable(np.zeros((0, 3), np.float32))
    assert empty == {"shape": [0, 3], "dtype": "float32"}
    result = failure("operation.oracle", "value", counterexample=example({"query": empty}))
    assert "  query = an array of shape (0, 3), float32\n" in violation_message(result)


def test_options_and_masks_are_shown_as_python() -> None:
    arguments = {"window": readable((None, 1)), "scale": readable(0.5), "causal": True, "mask": [[True]]}
    sent = json.loads(json.dumps({**arguments, "key_lengths": readable(np.array([3, 1]))}))
    assert sent["window"] == [None, 1]
    result = replace(
        failure("operation.oracle", "value", counterexample=example(sent)), operation="grouped_query_attention"
    )
    assert violation_message(result).splitlines()[3:8] == [
        "  window = (None, 1)", "  scale = 0.5", "  causal = True", "  mask = [[True]]", "  key_lengths = [3, 1]",
    ]  # fmt: skip


def test_long_arguments_are_cut_and_long_snippets_left_to_the_json() -> None:
    result = failure(
        "operation.oracle", "value", counterexample=example({"query": [1.0] * 400}, "x" * (MAX_SNIPPET + 1))
    )
    (line,) = [x for x in violation_message(result).splitlines() if x.startswith("  query = ")]
    assert line.removeprefix("  query = ") == ("[" + "1.0, " * 400)[:MAX_ARGUMENT] + " …"
    assert violation_message(result).endswith("  The snippet is long (4 kB): it is in the JSON report.")
