"""Violations in words: which stands first, what may be a consequence, and what is shown of a counterexample."""

from typing import Any

import numpy as np
import pytest

from attnspec.conformance.judging.causes import by_cause, consequences
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.snippet import readable
from attnspec.conformance.running.messages import MAX_ARGUMENT, MAX_SNIPPET, failure_message, violation_message
from attnspec.spec import LAWS


def failed(law: str, reason: str, observed: str | None = None, operation: str = "softmax", **more: Any) -> Result:
    """A violation."""
    return Result(operation, law, "float64", Status.FAILED, reason, "what was seen", observed=observed, **more)


def shown(arguments: dict[str, Any], snippet: str = "sys.exit(1)\n") -> dict[str, Any]:
    """A counterexample."""
    return {"arguments": arguments, "expected": 1, "got": 2, "budget": 0.1, "index": [0], "snippet": snippet}


ORACLE = failed("operation.oracle", "value")
SCALE = failed("attention.scale", "value")


def test_a_choice_that_wants_declaring_is_no_consequence() -> None:
    chosen = failed("semantics.fully_masked", "declared", "uniform")
    odd = failed("semantics.no_keys", "declared", "something else")
    accepted, other = failed("operation.rejection", "accepted"), failed("attention.scale", "value", operation="x")
    causes, following = by_cause([odd, SCALE, other, accepted, chosen, ORACLE])
    assert (causes, following) == ([ORACLE, chosen, other, accepted], [odd, SCALE])
    assert consequences([odd, SCALE, accepted, chosen]) == []


def test_what_fails_as_the_formula_does_may_follow_from_it() -> None:
    raised = failed("operation.oracle", "raised")
    assert consequences([raised, failed("operation.shape", "raised")]) == [failed("operation.shape", "raised")]
    assert consequences([ORACLE, failed("operation.shape", "raised")]) == []


def test_of_equal_causes_those_with_an_input_come_first() -> None:
    without, with_input = (
        failed("operation.shape", "shape"),
        failed("operation.dtype", "dtype", counterexample=shown({})),
    )
    other = failed("operation.batch-invariance", "shape")
    assert by_cause([without, with_input, other])[0] == [with_input, other, without]
    follows = failed("operation.batch-invariance", "value", counterexample=shown({}))
    assert by_cause([SCALE, ORACLE, follows])[1] == [follows, SCALE]


def test_of_equal_causes_the_law_of_the_fewest_operations_comes_first() -> None:
    generic, chapter, own = (
        failed(law, "value") for law in ("operation.batch-invariance", "masking.garbage", "attention.scale-trade")
    )
    counts = [len(LAWS[r.law].operations) for r in (own, chapter, generic)]
    assert counts == sorted(set(counts))
    assert by_cause([generic, chapter, own])[0] == [own, chapter, generic]
    assert by_cause([ORACLE, generic, chapter, own])[1] == [own, chapter, generic]


def test_a_test_fails_with_all_violations_and_says_what_may_follow() -> None:
    text = failure_message([SCALE, ORACLE])
    heading = "What follows may be a consequence, and vanish once operation.oracle holds for softmax:"
    assert text.startswith("operation.oracle is violated")
    assert text.endswith(f"{heading}\n  attention.scale: what was seen")
    assert "consequence" not in failure_message([SCALE])


def test_a_message_has_the_law_its_statement_the_input_and_the_snippet() -> None:
    result = failed(
        "operation.oracle", "value", counterexample=shown({"query": [[0.5]], "mask": None}, "a = 1\nsys.exit(1)\n")
    )
    assert violation_message(result).splitlines() == [
        "operation.oracle is violated by softmax (float64)",
        f"  {LAWS['operation.oracle'].statement}",
        "  what was seen",
        "  query = [[0.5]]",
        "  mask = null",
        "",
        "    a = 1",
        "    sys.exit(1)",
    ]


@pytest.mark.parametrize("path", ["parameters.w_hz", "layers[0].attention.w_q", "x y"])
def test_an_argument_is_shown_by_any_path(path: str) -> None:
    result = failed("operation.oracle", "value", counterexample=shown({path: [1.0]}))
    assert f"  {path} = [1.0]\n" in violation_message(result)


def test_an_array_without_elements_is_shown_by_its_shape() -> None:
    empty = readable(np.zeros((0, 3), np.float32))
    assert empty == {"shape": [0, 3], "dtype": "float32"}
    result = failed("operation.oracle", "value", counterexample=shown({"query": empty}))
    assert "  query = an array of shape (0, 3), float32\n" in violation_message(result)


def test_what_is_long_is_cut_or_left_to_the_json() -> None:
    result = failed("operation.oracle", "value", counterexample=shown({"query": [1.0] * 400}, "x" * (MAX_SNIPPET + 1)))
    (line,) = [x for x in violation_message(result).splitlines() if x.startswith("  query = ")]
    assert line.removeprefix("  query = ") == ("[" + "1.0, " * 400)[:MAX_ARGUMENT] + " …"
    assert violation_message(result).endswith("  The snippet is long (4 kB): it is in the JSON report.")
