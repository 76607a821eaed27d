"""``judge`` on attention in groups of heads: rows keep their positions, heads count as elements, options are tried."""

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge, suggest_inputs
from attnspec.conformance.harness import parts
from attnspec.conformance.harness.hidden import DEFECTS
from attnspec.conformance.harness.parts import at_rows, whole
from attnspec.conformance.harness.reading import arguments_of, results_of, subject_of
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.laws.common import sample
from attnspec.reference import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS

pytestmark = pytest.mark.slow

GROUPS = "grouped_query_attention"
HEADS, SHARED = 6, 2


def normal(*shape: int, seed: int = 0) -> Numbers:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(queries: int, keys: int, *, batch: int = 2, features: int = 8) -> dict[str, Any]:
    """Query, key and value of six heads of queries and two of keys."""
    return {
        "query": normal(batch, HEADS, queries, features, seed=1),
        "key": normal(batch, SHARED, keys, features, seed=2),
        "value": normal(batch, SHARED, keys, features, seed=3),
    }


def options(queries: int, keys: int) -> dict[str, Any]:
    """Every option, by name."""
    return {
        "mask": np.random.default_rng(4).random((2, queries, keys)) < 0.7,
        "causal": True,
        "scale": 0.2,
        "window": (20, 3),
        "softcap": 2.0,
        "bias": normal(HEADS, queries, keys, seed=5),
        "slopes": np.geomspace(0.5, 0.01, HEADS).astype(np.float32),
        "sinks": normal(HEADS, seed=6),
        "key_lengths": np.array([keys, keys // 2]),
    }


def attention(given: dict[str, Any], **changed: Any) -> tuple[Numbers, Numbers]:
    found: tuple[Numbers, Numbers] = REFERENCE[GROUPS](**{**given, **changed})
    return found


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few rows as of calls that are too large to be judged as a whole, and of few heads at once."""
    monkeypatch.setattr(parts, "PAIRS", 2**13)
    monkeypatch.setattr(parts, "AT_ONCE", 2**12)


# Rows -----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (50, 90), (90, 60)])
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
def test_rows_keep_their_positions(queries: int, keys: int, alignment: str) -> None:
    """With every pair of options, and with all of them."""
    every = options(queries, keys)
    for names in [(), *combinations(every, 2), tuple(every)]:
        chosen = {name: every[name] for name in names}
        given = {**inputs(queries, keys), **chosen}
        if alignment == "bottom-right" and {"causal", "window", "slopes"} & {*names}:
            output = aligned(given)
        else:
            output = attention(given)
        verdict = judge(GROUPS, output, **given, semantics={"causal_alignment": alignment})
        assert verdict, (names, str(verdict))
        rows = rf"\d+ of {queries} rows of each of 6 heads of each of 2 elements of the batch, with all keys"
        assert re.fullmatch(rows, verdict.judged)


def test_all_rows_are_aligned_as_declared() -> None:
    given = {**inputs(5, 9), "slopes": options(5, 9)["slopes"], "window": (3, 1)}
    assert judge(GROUPS, aligned(given), **given, semantics={"causal_alignment": "bottom-right"})
    assert not judge(GROUPS, aligned(given), **given)
    assert not judge(GROUPS, attention(given), **given, semantics={"causal_alignment": "bottom-right"})


def aligned(given: dict[str, Any]) -> tuple[Numbers, Numbers]:
    """Attention whose diagonal ends at the last query and the last key, rounded to float32."""
    queries, keys = given["query"].shape[-2], given["key"].shape[-2]
    behind = np.arange(keys) - np.arange(queries)[:, None] - (keys - queries)
    left, right = given.get("window", (keys + queries, keys + queries))
    near = (behind >= -left) & (behind <= right) & ((behind <= 0) | (not given.get("causal", False)))
    mask = given.get("mask", True) & near
    bias = given.get("bias", np.zeros((HEADS, 1, 1), np.float32))
    steep = given.get("slopes", np.zeros(HEADS)).astype(np.float64)
    spelled = {**given, "mask": mask, "bias": bias - steep[:, None, None] * np.abs(behind)}
    rest = {name: x for name, x in spelled.items() if name not in ("causal", "window", "slopes")}
    wide = {name: x.astype(np.float64) if getattr(x, "dtype", None) == np.float32 else x for name, x in rest.items()}
    output, logarithms = attention(wide)
    return output.astype(np.float32), logarithms.astype(np.float32)


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a window that is off by one": lambda given: {"window": (21, 3)},
    "lengths that are ignored": lambda given: {"key_lengths": None},
    "sinks that are dropped": lambda given: {"sinks": None},
    "slopes that are dropped": lambda given: {"slopes": None},
    "slopes from the end": lambda given: {"slopes": given["slopes"][::-1]},
    "no cap": lambda given: {"softcap": None},
    "another scale": lambda given: {"scale": 0.21},
    "the last key dropped": lambda given: {"mask": given["mask"] & (np.arange(given["key"].shape[-2]) < 69)},
}


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rows_are_convicted(wrong: str) -> None:
    given = {**inputs(70, 70), **options(70, 70), "mask": np.ones((1, 70), bool)}
    given["window"] = (20, None) if wrong == "the last key dropped" else (20, 3)
    verdict = judge(GROUPS, attention(given, **WRONG[wrong](given)), **given)
    assert not verdict
    assert verdict.worst is not None


@pytest.mark.usefixtures("sampled")
def test_slopes_are_spelled_out_with_a_rounding() -> None:
    """A bias in double precision has the distances, and slopes of 0 stay."""
    given = arguments_of(OPERATIONS[GROUPS], (), {**inputs(70, 80), "slopes": options(70, 80)["slopes"]})
    subject = subject_of(OPERATIONS[GROUPS], "float32", None, None)
    chosen = at_rows(subject, given, np.array([3, 60]))
    distances = np.abs(np.array([[3], [60]]) - np.arange(80))
    np.testing.assert_array_equal(chosen["bias"], -given.array("slopes")[:, None, None].astype(float) * distances)
    np.testing.assert_array_equal(chosen["slopes"], 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "names", [("causal", "window"), ("slopes", "sinks", "key_lengths"), ("window", "softcap", "key_lengths"), ("bias",)]
)
def test_honest_results_of_many_rows_are_right(dtype: str, names: tuple[str, ...]) -> None:
    torch = pytest.importorskip("torch", reason="the results are PyTorch's")
    from attnspec.backends import pytorch

    def tensor(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        return torch.from_numpy(x).to(getattr(torch, dtype)) if x.dtype == np.float32 else torch.from_numpy(x)

    queries, keys = 2048, 2100
    every = {**options(1, keys), "window": (300, 0), "mask": None}
    given = {name: tensor(x) for name, x in {**inputs(queries, keys), **{n: every[n] for n in names}}.items()}
    verdict = judge(GROUPS, pytorch.grouped_query_attention(**given), **given)
    assert verdict, verdict
    assert re.match(r"\d+ of 2,048 rows of each of 6 heads", verdict.judged)
    assert re.fullmatch(r"[\d,]+ rows", verdict.ensemble)


# Heads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("operation", [GROUPS, "latent_attention"])
@pytest.mark.parametrize("queries", [4, 70])
def test_every_head_is_judged(operation: str, queries: int) -> None:
    subject = subject_of(OPERATIONS[operation], "float32", None, None)
    given = sample(subject, np.random.default_rng(0), (2,), queries=queries, keys=300, features=4, heads=5)
    output = REFERENCE[operation](**given.values_by_name)
    leading = output[0] if isinstance(output, tuple) else output
    assert judge(operation, output, **given.passed)
    assert leading.shape[1] > 1
    for index in np.ndindex(*leading.shape[:2]):
        right = leading[index].copy()
        leading[index] += 1
        found = judge(operation, output, **given.passed).worst
        assert found is not None
        assert found.index[:2] == index
        assert found.got == leading[found.index]
        leading[index] = right


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("shared", [1, 2, 6])
def test_heads_are_judged_a_few_at_once(shared: int) -> None:
    """Heads of keys, or of the group where all share one."""
    subject = subject_of(OPERATIONS[GROUPS], "float32", None, None)
    given = {**inputs(70, 70, batch=1), "bias": normal(1, 70, 70), "slopes": options(1, 1)["slopes"]}
    given |= {name: given[name][:, [i % SHARED for i in range(shared)]] for name in ("key", "value")}
    arguments = arguments_of(OPERATIONS[GROUPS], (), given)
    results = results_of(OPERATIONS[GROUPS], attention(given), arguments, "output")
    found = list(parts.parts(subject, whole(arguments, results), np.random.default_rng(0)))
    assert len(found) > 1
    assert sorted(int(i) for part in found for i in part.heads) == list(range(HEADS))  # type: ignore[union-attr]
    for part in found:
        heads = part.heads
        assert heads is not None
        np.testing.assert_array_equal(part.results["output"], results["output"][0][heads][:, part.rows])
        np.testing.assert_array_equal(part.arguments["query"], given["query"][0][heads][:, part.rows])


# All rows together, and what inputs hide ------------------------------------------------------------------------------


def test_errors_below_every_rounding_are_seen() -> None:
    given = {name: x.astype(ml_dtypes.bfloat16) for name, x in inputs(200, 300).items()}
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    output = attention(wide)[0]
    right = judge(GROUPS, (output.astype(ml_dtypes.bfloat16), None), **given)
    assert right
    assert right.ensemble == "2,400 rows"
    wrong = judge(GROUPS, ((1.001 * output).astype(ml_dtypes.bfloat16), None), **given)
    assert wrong.worst is None
    assert re.match(r"a relative error of 0\.00\d+ in the gain shows over 2400", wrong.together)


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("eager-bfloat16", "the class rounds keys, which heads share"),
        ("mixed-bfloat16+fast-tanh", "the class approximates the cap, which all rows share"),
    ],
)
def test_why_rows_are_not_judged_together(precision: str, words: str) -> None:
    given = {name: x.astype(ml_dtypes.bfloat16) for name, x in inputs(20, 30).items()}
    output = attention(given, softcap=2.0)
    verdict = judge(GROUPS, output, **given, softcap=2.0, precision=precision)
    assert verdict.ensemble == f"not judged, for {words}"


SEEN = {
    "window": ("a window that is ignored", "a window that is one key wider on either side"),
    "key_lengths": (
        "lengths that are ignored",
        "lengths that are one key too long",
        "lengths that are one key too short",
    ),
    "softcap": ("a cap that is left out",),
    "bias": ("a bias that is left out",),
    "slopes": ("slopes that are left out",),
    "sinks": ("sinks that are left out",),
}


def hidden_of_options(hidden: tuple[str, ...]) -> set[str]:
    return {words for words in hidden if words in [x for known in SEEN.values() for x in known]}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("option", SEEN)
def test_defects_of_options_are_hidden_by_equal_values(option: str, many: bool, request: pytest.FixtureRequest) -> None:
    """And seen in others; but for sinks, which make every result smaller."""
    if many:
        request.getfixturevalue("sampled")
    given = {**inputs(70, 70), option: options(70, 70)[option]}
    verdict = judge(GROUPS, attention(given), **given)
    assert verdict, verdict
    assert verdict.cannot_see == ()
    given["value"] = np.ones_like(given["value"])
    hidden = judge(GROUPS, (attention(given)[0], None), **given).cannot_see
    assert set(hidden) <= set(DEFECTS)
    assert hidden_of_options(hidden) == (set() if option == "sinks" else set(SEEN[option]))


def test_inputs_are_suggested() -> None:
    given = {name: np.ones_like(x) for name, x in inputs(70, 70).items()} | {"causal": True, "window": (9, 0)}
    verdict = judge(GROUPS, attention(given), **given)
    assert "a scale that is 5 % off" in verdict.cannot_see
    found = suggest_inputs(GROUPS, **given)
    assert {name: found[name] for name in ("causal", "window")} == {"causal": True, "window": (9, 0)}
    assert judge(GROUPS, attention(found), **found).cannot_see == ()


@pytest.mark.parametrize("operation", ["variable_length_attention", "paged_attention", "latent_attention", "lstm"])
def test_where_nothing_is_tried_it_is_said(operation: str) -> None:
    subject = subject_of(OPERATIONS[operation], "float32", None, None)
    given = sample(subject, np.random.default_rng(0), (2,), queries=5, keys=6, features=4, heads=2)
    verdict = judge(operation, REFERENCE[operation](**given.values_by_name), **given.passed)
    assert verdict, verdict
    assert verdict.ensemble == f"not judged, for no filter concerns {operation}"
    assert verdict.cannot_see == (f"any known defect, for none is tried on {operation}",)


# Logarithms -----------------------------------------------------------------------------------------------------------


def test_a_result_that_a_library_lacks_is_not_judged() -> None:
    given = inputs(5, 6)
    output, logarithms = attention(given)
    verdict = judge(GROUPS, (output, None), **given)
    assert verdict, verdict
    assert verdict.judged == "every number, without log_sum_exp, which is not given"
    assert not judge(GROUPS, (output + 1, None), **given)
    assert not judge(GROUPS, (output, logarithms + 1), **given)
    with pytest.raises(TypeError, match=f"{GROUPS}: output output: expected an array, by DLPack or .*; got NoneType"):
        judge(GROUPS, (None, logarithms), **given)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logarithms_may_be_in_float32(dtype: str) -> None:
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    given = {name: x.astype(narrow) for name, x in inputs(5, 6).items()}
    output, logarithms = attention({name: x.astype(np.float32) for name, x in given.items()})
    assert judge(GROUPS, (output.astype(narrow), logarithms), **given)
    wrong = judge(GROUPS, (output.astype(narrow), logarithms + np.float32(0.5)), **given)
    assert wrong.worst is not None
    assert wrong.worst.of == "the result log_sum_exp"
    words = f"{GROUPS}: output log_sum_exp: expected {dtype} as the arguments, or float32; got float64"
    with pytest.raises(TypeError, match=words):
        judge(GROUPS, (output.astype(narrow), logarithms.astype(np.float64)), **given)
    with pytest.raises(TypeError, match=f"{GROUPS}: output output: expected {dtype} as the arguments; got float32"):
        judge(GROUPS, (output, logarithms), **given)


def test_logarithms_of_float32_are_not_in_float64() -> None:
    given = inputs(5, 6)
    output, logarithms = attention(given)
    with pytest.raises(
        TypeError, match=f"{GROUPS}: output log_sum_exp: expected float32 as the arguments; got float64"
    ):
        judge(GROUPS, (output, logarithms.astype(np.float64)), **given)


def test_a_cotangent_may_leave_logarithms_out() -> None:
    given = inputs(5, 6)
    output, logarithms = attention(given)
    zeros = {"value": np.zeros_like(given["value"])}
    for results, cotangent in (
        ((output, logarithms), (0 * output, None)),
        ((output, None), (0 * output, None)),
        ((output, logarithms), (0 * output, 0 * logarithms)),
    ):
        assert judge(GROUPS, results, **given, gradients=zeros, cotangent=cotangent)


def test_a_cotangent_is_none_where_no_logarithms_are_given() -> None:
    given = inputs(5, 6)
    output, _ = attention(given)
    words = re.escape(f"{GROUPS}: cotangent: expected (output, None): result: expected a tuple; got ndarray")
    with pytest.raises(TypeError, match=words):
        judge(GROUPS, (output, None), **given, gradients={"value": given["value"]}, cotangent=output)
    words = re.escape(f"{GROUPS}: output: expected (output, log_sum_exp or None): result: expected a tuple")
    with pytest.raises(TypeError, match=words):
        judge(GROUPS, output, **given)


SIDES = r"window: expected a tuple \(left, right\), each an integer .*; got \(-1, 0\)"


# Numbers that tell nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "words"), [(np.nan, "NaN"), (np.inf, "infinities")])
def test_a_cotangent_that_is_not_finite_is_refused(number: float, words: str) -> None:
    given = inputs(5, 6)
    output, _ = attention(given)
    cotangent = np.full_like(output, number)
    for found in ("query", "key", "value"):
        with pytest.raises(ValueError, match=f"{GROUPS}: cotangent output: expected finite numbers; got {words}"):
            judge(GROUPS, (output, None), **given, gradients={found: given[found]}, cotangent=(cotangent, None))


@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ({"scale": float("nan")}, ValueError, "scale: expected a finite number; got nan"),
        ({"scale": -np.inf}, ValueError, "scale: expected a finite number; got -inf"),
        ({"scale": 10**400}, ValueError, "scale: expected a finite number; got an integer of 1329 bits"),
        ({"softcap": float("inf")}, ValueError, "softcap: expected a finite number; got inf"),
        ({"softcap": 0.0}, ValueError, r"softcap: expected a number above 0; got 0\.0"),
        ({"softcap": -1}, ValueError, "softcap: expected a number above 0; got -1"),
        ({"window": (-1, 0)}, TypeError, SIDES),
        ({"scale": np.ones(())}, TypeError, r"scale: expected a number; got an array of shape \(\)"),
        ({"key_lengths": np.array([7, 1])}, ValueError, r"key_lengths: expected key_lengths in 0\.\.6; got 7"),
    ],
)
def test_options_that_tell_nothing_are_refused(option: dict[str, Any], error: type[Exception], words: str) -> None:
    given = inputs(5, 6)
    with pytest.raises(error, match=f"{GROUPS}: {words}"):
        judge(GROUPS, attention(given), **given, **option)


def test_options_may_be_numbers_of_numpy() -> None:
    given = inputs(5, 6)
    output = attention(given, scale=0.25, causal=True)
    assert judge(GROUPS, output, **given, scale=np.float64(0.25), causal=np.True_)
    assert judge(GROUPS, output, **given, scale=np.float32(0.25), causal=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_what_is_added_to_scores_may_be_in_float32(dtype: str) -> None:
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    given = {name: x.astype(narrow) for name, x in inputs(5, 6).items()}
    added = {name: options(5, 6)[name] for name in ("bias", "slopes", "sinks")}
    output, logarithms = attention({name: x.astype(np.float32) for name, x in (given | added).items()})
    output = output.astype(narrow if dtype != "float8_e4m3fn" else np.float16)
    assert judge(GROUPS, (output, logarithms), **given, **added)
    assert not judge(GROUPS, (output, logarithms), **given, **(added | {"sinks": 2 * added["sinks"]}))
    words = f"{GROUPS}: expected floats in one of float64, .*, sinks in float64"
    with pytest.raises(TypeError, match=words):
        judge(GROUPS, (output, logarithms), **given, **(added | {"sinks": added["sinks"].astype(np.float64)}))


def test_results_in_8_bits_are_refused() -> None:
    narrow = np.dtype(ml_dtypes.float8_e4m3fn)
    given = {name: x.astype(narrow) for name, x in inputs(5, 6).items()}
    output, _ = attention({name: x.astype(np.float32) for name, x in given.items()})
    with pytest.raises(TypeError, match=f"{GROUPS}: output output: expected one of float64, .*; got float8_e4m3fn"):
        judge(GROUPS, (output.astype(narrow), None), **given)


@pytest.mark.parametrize("empty", ["queries", "keys", "batch"])
def test_what_is_empty_hides_everything(empty: str) -> None:
    sizes = {"queries": 5, "keys": 6, "batch": 2} | {empty: 0}
    given = inputs(**sizes) | {"causal": True, "window": (2, 0)}
    verdict = judge(GROUPS, attention(given), **given)
    assert verdict, verdict
    assert {"keys that are not read", "a window that is ignored"} <= set(verdict.cannot_see)
    found = suggest_inputs(GROUPS, **given)
    assert found["query"].shape == given["query"].shape


@pytest.mark.usefixtures("sampled")
def test_a_defect_is_named_where_a_logarithm_is_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head's number is no row: there are more heads than rows."""
    monkeypatch.setattr("attnspec.conformance.harness.judge.DIAGNOSED_PAIRS", 2**8)
    monkeypatch.setattr("attnspec.conformance.harness.judge.DIAGNOSED_ROWS", 2)
    given = inputs(4, 500, batch=1)
    output, logarithms = attention(given)
    logarithms[0, HEADS - 1, 1] += 100
    verdict = judge(GROUPS, (output, logarithms), **given)
    assert verdict.worst is not None
    assert verdict.worst.index == (0, HEADS - 1, 1)
    assert verdict.diagnosis == ""


def test_results_with_an_entry_for_every_key_have_no_defects_of_keys() -> None:
    scores = normal(2, 5, 6)
    verdict = judge("softmax", REFERENCE["softmax"](scores), scores)
    assert verdict.cannot_see == ("any known defect, for none is tried on softmax",)


@pytest.mark.parametrize(
    ("operation", "arguments", "words"),
    [
        ("causal_mask", ((), 3), r"causal_mask: n: expected an integer; got \(\)"),
        ("causal_mask", ({}, 3), "causal_mask: n: expected an integer; got {}"),
        ("dot_scores", (normal(3, 4), None), "dot_scores: key: expected an array, by DLPack or .*; got NoneType"),
    ],
)
def test_arguments_of_another_kind_are_refused(operation: str, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        judge(operation, np.ones((3, 3), np.float32), *arguments)
