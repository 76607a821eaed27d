"""``judge`` on grouped-query attention: positions of sampled rows, heads, and options."""

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge, suggest_inputs
from attnspec.conformance.harness import parts
from attnspec.conformance.harness.hidden_defects import DEFECTS
from attnspec.conformance.harness.parts import at_rows, whole
from attnspec.conformance.harness.reading import arguments_of, results_of, subject_of
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.laws.common import sample
from attnspec.reference import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS

pytestmark = pytest.mark.slow

GROUPS = "grouped_query_attention"
HEADS, KEY_HEADS = 6, 2


def normal(*shape: int, seed: int = 0) -> Numbers:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(queries: int, keys: int, *, batch: int = 2, features: int = 8) -> dict[str, Any]:
    """Query, key and value with six heads of queries and two of keys."""
    return {
        "query": normal(batch, HEADS, queries, features, seed=1),
        "key": normal(batch, KEY_HEADS, keys, features, seed=2),
        "value": normal(batch, KEY_HEADS, keys, features, seed=3),
    }


def options(queries: int, keys: int) -> dict[str, Any]:
    """A value of every option, by name."""
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


def attention(arguments: dict[str, Any], **changed: Any) -> tuple[Numbers, Numbers]:
    result: tuple[Numbers, Numbers] = REFERENCE[GROUPS](**{**arguments, **changed})
    return result


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge few rows and heads at once, as in calls too large to judge whole."""
    monkeypatch.setattr(parts, "JUDGED_PAIRS", 2**13)
    monkeypatch.setattr(parts, "PAIRS_PER_ORACLE", 2**12)


# Rows -----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (50, 90), (90, 60)])
@pytest.mark.parametrize(
    "semantics",
    [
        {},
        {"causal_alignment": "bottom-right"},
        {"length_alignment": "at-length"},
        {"causal_alignment": "bottom-right", "length_alignment": "at-length", "window_left": "includes-own"},
    ],
)
def test_rows_keep_their_positions(queries: int, keys: int, semantics: dict[str, str]) -> None:
    """Every pair of options is tried, and all options together."""
    every = options(queries, keys)
    for names in [(), *combinations(every, 2), tuple(every)]:
        chosen = {name: every[name] for name in names}
        arguments = {**inputs(queries, keys), **chosen}
        if semantics and {"causal", "window", "slopes"} & {*names}:
            output = aligned(arguments, semantics)
        else:
            output = attention(arguments)
        verdict = judge(GROUPS, output, **arguments, semantics=semantics)
        assert verdict, (names, str(verdict))
        rows = rf"\d+ of {queries} rows of each of 6 heads of each of 2 elements of the batch, with all keys"
        assert re.fullmatch(rows, verdict.judged)


def test_all_rows_are_aligned_as_declared() -> None:
    arguments = {**inputs(5, 9), "slopes": options(5, 9)["slopes"], "window": (3, 1)}
    semantics = {"causal_alignment": "bottom-right"}
    assert judge(GROUPS, aligned(arguments, semantics), **arguments, semantics=semantics)
    assert not judge(GROUPS, aligned(arguments, semantics), **arguments)
    assert not judge(GROUPS, attention(arguments), **arguments, semantics=semantics)


def aligned(arguments: dict[str, Any], semantics: dict[str, str]) -> tuple[Numbers, Numbers]:
    """Attention under a mask and a bias that express positions, for these choices."""
    queries, keys = arguments["query"].shape[-2], arguments["key"].shape[-2]
    offset = keys - queries if semantics.get("causal_alignment") == "bottom-right" else 0
    if "key_lengths" in arguments and semantics.get("length_alignment") == "at-length":
        offset = arguments["key_lengths"][:, None, None] - queries
    distance = np.arange(keys) - np.arange(queries)[:, None] - offset
    window_left, window_right = arguments.get("window", (keys + queries, keys + queries))
    window_left -= semantics.get("window_left") == "includes-own"
    allowed = (
        (distance >= -window_left)
        & (distance <= window_right)
        & ((distance <= 0) | (not arguments.get("causal", False)))
    )
    mask = arguments.get("mask", True) & allowed
    bias = arguments.get("bias", np.zeros((HEADS, 1, 1), np.float32))
    slopes = arguments.get("slopes", np.zeros(HEADS)).astype(np.float64)
    changed = {**arguments, "mask": mask, "bias": bias - slopes[:, None, None] * np.abs(distance)[..., None, :, :]}
    spelled_out = {name: x for name, x in changed.items() if name not in ("causal", "window", "slopes")}
    in_float64 = {
        name: x.astype(np.float64) if getattr(x, "dtype", None) == np.float32 else x for name, x in spelled_out.items()
    }
    output, logarithms = attention(in_float64)
    return output.astype(np.float32), logarithms.astype(np.float32)


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a window that is off by one": lambda call: {"window": (21, 3)},
    "lengths that are ignored": lambda call: {"key_lengths": None},
    "sinks that are dropped": lambda call: {"sinks": None},
    "slopes that are dropped": lambda call: {"slopes": None},
    "slopes from the end": lambda call: {"slopes": call["slopes"][::-1]},
    "no cap": lambda call: {"softcap": None},
    "another scale": lambda call: {"scale": 0.21},
    "the last key dropped": lambda call: {"mask": call["mask"] & (np.arange(call["key"].shape[-2]) < 69)},
}


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options_are_convicted(wrong: str) -> None:
    arguments = {**inputs(70, 70), **options(70, 70), "mask": np.ones((1, 70), bool)}
    arguments["window"] = (20, None) if wrong == "the last key dropped" else (20, 3)
    verdict = judge(GROUPS, attention(arguments, **WRONG[wrong](arguments)), **arguments)
    assert not verdict
    assert verdict.worst is not None


@pytest.mark.usefixtures("sampled")
def test_slopes_of_sampled_rows_become_a_bias() -> None:
    """Slopes become a float64 bias of distances, and zeros take their place."""
    arguments = arguments_of(OPERATIONS[GROUPS], (), {**inputs(70, 80), "slopes": options(70, 80)["slopes"]})
    subject = subject_of(OPERATIONS[GROUPS], "float32", None, None)
    chosen = at_rows(subject, arguments, np.array([3, 60]))
    distances = np.abs(np.array([[3], [60]]) - np.arange(80))
    np.testing.assert_array_equal(chosen["bias"], -arguments.array("slopes")[:, None, None].astype(float) * distances)
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
    arguments = {name: tensor(x) for name, x in {**inputs(queries, keys), **{n: every[n] for n in names}}.items()}
    verdict = judge(GROUPS, pytorch.grouped_query_attention(**arguments), **arguments)
    assert verdict, verdict
    assert re.match(r"\d+ of 2,048 rows of each of 6 heads", verdict.judged)
    assert re.fullmatch(r"tested on [\d,]+ rows", verdict.ensemble)


# Heads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("operation", [GROUPS, "latent_attention"])
@pytest.mark.parametrize("queries", [4, 70])
def test_every_head_is_judged(operation: str, queries: int) -> None:
    subject = subject_of(OPERATIONS[operation], "float32", None, None)
    arguments = sample(subject, np.random.default_rng(0), (2,), queries=queries, keys=300, features=4, heads=5)
    output = REFERENCE[operation](**arguments.values_by_name)
    leading = output[0] if isinstance(output, tuple) else output
    assert judge(operation, output, **arguments.passed)
    assert leading.shape[1] > 1
    for index in np.ndindex(*leading.shape[:2]):
        original = leading[index].copy()
        leading[index] += 1
        worst = judge(operation, output, **arguments.passed).worst
        assert worst is not None
        assert worst.index[:2] == index
        assert worst.got == leading[worst.index]
        leading[index] = original


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_heads_are_judged_in_parts(key_heads: int) -> None:
    """Parts contain heads of keys, or heads of queries if all share one key head."""
    subject = subject_of(OPERATIONS[GROUPS], "float32", None, None)
    call = {**inputs(70, 70, batch=1), "bias": normal(1, 70, 70), "slopes": options(1, 1)["slopes"]}
    call |= {name: call[name][:, [i % KEY_HEADS for i in range(key_heads)]] for name in ("key", "value")}
    arguments = arguments_of(OPERATIONS[GROUPS], (), call)
    results = results_of(OPERATIONS[GROUPS], attention(call), arguments, "output")
    judged_parts = list(parts.parts(subject, whole(arguments, results), np.random.default_rng(0)))
    assert len(judged_parts) > 1
    assert sorted(int(i) for part in judged_parts for i in part.heads) == list(range(HEADS))  # type: ignore[union-attr]
    for part in judged_parts:
        heads = part.heads
        assert heads is not None
        np.testing.assert_array_equal(part.results["output"], results["output"][0][heads][:, part.rows])
        np.testing.assert_array_equal(part.arguments["query"], call["query"][0][heads][:, part.rows])


# All rows together, and what inputs hide ------------------------------------------------------------------------------


def test_errors_below_the_rounding_of_every_number_are_seen_together() -> None:
    arguments = {name: x.astype(ml_dtypes.bfloat16) for name, x in inputs(200, 300).items()}
    in_float64 = {name: x.astype(np.float64) for name, x in arguments.items()}
    output = attention(in_float64)[0]
    right = judge(GROUPS, (output.astype(ml_dtypes.bfloat16), None), **arguments)
    assert right
    assert right.ensemble == "tested on 2,400 rows"
    wrong = judge(GROUPS, ((1.001 * output).astype(ml_dtypes.bfloat16), None), **arguments)
    assert wrong.worst is None
    assert re.match(r"a relative error of 0\.00\d+ in the gain shows over 2400", wrong.together)


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("eager-bfloat16", "the precision class rounds keys, which heads share"),
        ("mixed-bfloat16+fast-tanh", "the precision class approximates the cap's tanh, which all rows share"),
    ],
)
def test_the_reason_why_rows_are_not_judged_together_is_named(precision: str, message: str) -> None:
    arguments = {name: x.astype(ml_dtypes.bfloat16) for name, x in inputs(20, 30).items()}
    output = attention(arguments, softcap=2.0)
    verdict = judge(GROUPS, output, **arguments, softcap=2.0, precision=precision)
    assert verdict.ensemble == f"not tested, because {message}"


DEFECTS_OF_OPTIONS = {
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


def hidden_defects_of_options(hidden: tuple[str, ...]) -> set[str]:
    return {defect for defect in hidden if defect in [x for defects in DEFECTS_OF_OPTIONS.values() for x in defects]}


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize("option", DEFECTS_OF_OPTIONS)
def test_equal_values_hide_defects_of_options(option: str, many_rows: bool, request: pytest.FixtureRequest) -> None:
    """Unequal values show every defect; sinks show in equal values, too, since they shrink results."""
    if many_rows:
        request.getfixturevalue("sampled")
    arguments = {**inputs(70, 70), option: options(70, 70)[option]}
    verdict = judge(GROUPS, attention(arguments), **arguments)
    assert verdict, verdict
    assert verdict.cannot_see == ()
    arguments["value"] = np.ones_like(arguments["value"])
    hidden = judge(GROUPS, (attention(arguments)[0], None), **arguments).cannot_see
    assert set(hidden) <= set(DEFECTS)
    assert hidden_defects_of_options(hidden) == (set() if option == "sinks" else set(DEFECTS_OF_OPTIONS[option]))


def test_inputs_are_suggested() -> None:
    arguments = {name: np.ones_like(x) for name, x in inputs(70, 70).items()} | {"causal": True, "window": (9, 0)}
    verdict = judge(GROUPS, attention(arguments), **arguments)
    assert "a scale that is 5 % off" in verdict.cannot_see
    suggested = suggest_inputs(GROUPS, **arguments)
    assert {name: suggested[name] for name in ("causal", "window")} == {"causal": True, "window": (9, 0)}
    assert judge(GROUPS, attention(suggested), **suggested).cannot_see == ()


@pytest.mark.parametrize("operation", ["variable_length_attention", "paged_attention", "latent_attention", "lstm"])
def test_operations_without_joint_judgement_say_so(operation: str) -> None:
    subject = subject_of(OPERATIONS[operation], "float32", None, None)
    arguments = sample(subject, np.random.default_rng(0), (2,), queries=5, keys=6, features=4, heads=2)
    verdict = judge(operation, REFERENCE[operation](**arguments.values_by_name), **arguments.passed)
    assert verdict, verdict
    assert verdict.ensemble == f"not tested, because no test exists for {operation}"
    assert verdict.cannot_see == (f"not examined for {operation}",)


# Logarithms -----------------------------------------------------------------------------------------------------------


def test_a_result_that_a_library_lacks_is_not_judged() -> None:
    arguments = inputs(5, 6)
    output, logarithms = attention(arguments)
    verdict = judge(GROUPS, (output, None), **arguments)
    assert verdict, verdict
    assert verdict.judged == "every number, without log_sum_exp, which was not passed"
    assert not judge(GROUPS, (output + 1, None), **arguments)
    assert not judge(GROUPS, (output, logarithms + 1), **arguments)
    with pytest.raises(TypeError, match=f"{GROUPS}: output: expected an array, by DLPack or .*; got NoneType"):
        judge(GROUPS, (None, logarithms), **arguments)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logarithms_may_be_in_float32(dtype: str) -> None:
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arguments = {name: x.astype(narrow) for name, x in inputs(5, 6).items()}
    output, logarithms = attention({name: x.astype(np.float32) for name, x in arguments.items()})
    assert judge(GROUPS, (output.astype(narrow), logarithms), **arguments)
    wrong = judge(GROUPS, (output.astype(narrow), logarithms + np.float32(0.5)), **arguments)
    assert wrong.worst is not None
    assert wrong.worst.of == "the result log_sum_exp"
    message = f"{GROUPS}: output log_sum_exp: expected {dtype}, like the arguments, or float32; got float64"
    with pytest.raises(TypeError, match=message):
        judge(GROUPS, (output.astype(narrow), logarithms.astype(np.float64)), **arguments)
    with pytest.raises(TypeError, match=f"{GROUPS}: output: expected {dtype}, like the arguments; got float32"):
        judge(GROUPS, (output, logarithms), **arguments)


def test_logarithms_of_float32_are_not_in_float64() -> None:
    arguments = inputs(5, 6)
    output, logarithms = attention(arguments)
    with pytest.raises(
        TypeError, match=f"{GROUPS}: output log_sum_exp: expected float32, like the arguments; got float64"
    ):
        judge(GROUPS, (output, logarithms.astype(np.float64)), **arguments)


def test_a_cotangent_may_leave_logarithms_out() -> None:
    arguments = inputs(5, 6)
    output, logarithms = attention(arguments)
    zeros = {"value": np.zeros_like(arguments["value"])}
    for results, cotangent in (
        ((output, logarithms), (0 * output, None)),
        ((output, None), (0 * output, None)),
        ((output, logarithms), (0 * output, 0 * logarithms)),
    ):
        assert judge(GROUPS, results, **arguments, gradients=zeros, cotangent=cotangent)


def test_a_cotangent_is_none_where_no_logarithms_are_given() -> None:
    arguments = inputs(5, 6)
    output, _ = attention(arguments)
    message = re.escape(f"{GROUPS}: cotangent: expected (output, None): result: expected a tuple; got ndarray")
    with pytest.raises(TypeError, match=message):
        judge(GROUPS, (output, None), **arguments, gradients={"value": arguments["value"]}, cotangent=output)
    message = re.escape(f"{GROUPS}: output: expected (output, log_sum_exp or None): result: expected a tuple")
    with pytest.raises(TypeError, match=message):
        judge(GROUPS, output, **arguments)


INVALID_WINDOW = r"window: expected a tuple \(left, right\), each an integer .*; got \(-1, 0\)"


# Numbers that tell nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "message"), [(np.nan, "NaN"), (np.inf, "infinities")])
def test_a_cotangent_that_is_not_finite_is_refused(number: float, message: str) -> None:
    arguments = inputs(5, 6)
    output, _ = attention(arguments)
    cotangent = np.full_like(output, number)
    for path in ("query", "key", "value"):
        with pytest.raises(ValueError, match=f"{GROUPS}: cotangent output: expected finite numbers; got {message}"):
            judge(GROUPS, (output, None), **arguments, gradients={path: arguments[path]}, cotangent=(cotangent, None))


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"scale": float("nan")}, ValueError, "scale: expected a finite number; got nan"),
        ({"scale": -np.inf}, ValueError, "scale: expected a finite number; got -inf"),
        ({"scale": 10**400}, ValueError, "scale: expected a finite number; got an integer of 1329 bits"),
        ({"softcap": float("inf")}, ValueError, "softcap: expected a finite number; got inf"),
        ({"softcap": 0.0}, ValueError, r"softcap: expected a number above 0; got 0\.0"),
        ({"softcap": -1}, ValueError, "softcap: expected a number above 0; got -1"),
        ({"window": (-1, 0)}, TypeError, INVALID_WINDOW),
        ({"scale": np.ones(())}, TypeError, r"scale: expected a number; got an array of shape \(\)"),
        ({"key_lengths": np.array([7, 1])}, ValueError, r"key_lengths: expected key_lengths in 0\.\.6; got 7"),
    ],
)
def test_invalid_options_are_refused(option: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = inputs(5, 6)
    with pytest.raises(error, match=f"{GROUPS}: {message}"):
        judge(GROUPS, attention(arguments), **arguments, **option)


def test_options_may_be_numbers_of_numpy() -> None:
    arguments = inputs(5, 6)
    output = attention(arguments, scale=0.25, causal=True)
    assert judge(GROUPS, output, **arguments, scale=np.float64(0.25), causal=np.True_)
    assert judge(GROUPS, output, **arguments, scale=np.float32(0.25), causal=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_bias_slopes_and_sinks_may_be_in_float32(dtype: str) -> None:
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arguments = {name: x.astype(narrow) for name, x in inputs(5, 6).items()}
    added = {name: options(5, 6)[name] for name in ("bias", "slopes", "sinks")}
    output, logarithms = attention({name: x.astype(np.float32) for name, x in (arguments | added).items()})
    output = output.astype(narrow if dtype != "float8_e4m3fn" else np.float16)
    assert judge(GROUPS, (output, logarithms), **arguments, **added)
    assert not judge(GROUPS, (output, logarithms), **arguments, **(added | {"sinks": 2 * added["sinks"]}))
    message = f"{GROUPS}: expected floats of a single dtype, one of float64, .*, sinks in float64"
    with pytest.raises(TypeError, match=message):
        judge(GROUPS, (output, logarithms), **arguments, **(added | {"sinks": added["sinks"].astype(np.float64)}))


def test_results_in_8_bits_are_refused() -> None:
    narrow = np.dtype(ml_dtypes.float8_e4m3fn)
    arguments = {name: x.astype(narrow) for name, x in inputs(5, 6).items()}
    output, _ = attention({name: x.astype(np.float32) for name, x in arguments.items()})
    with pytest.raises(TypeError, match=f"{GROUPS}: output: expected one of float64, .*; got float8_e4m3fn"):
        judge(GROUPS, (output.astype(narrow), None), **arguments)


@pytest.mark.parametrize("empty", ["queries", "keys", "batch"])
def test_empty_inputs_hide_every_defect(empty: str) -> None:
    sizes = {"queries": 5, "keys": 6, "batch": 2} | {empty: 0}
    arguments = inputs(**sizes) | {"causal": True, "window": (2, 0)}
    verdict = judge(GROUPS, attention(arguments), **arguments)
    assert verdict, verdict
    assert {"keys that are not read", "a window that is ignored"} <= set(verdict.cannot_see)
    suggested = suggest_inputs(GROUPS, **arguments)
    assert suggested["query"].shape == arguments["query"].shape


@pytest.mark.usefixtures("sampled")
def test_a_wrong_log_sum_exp_has_the_index_of_its_head_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more heads than rows, a head's index cannot be taken for a row."""
    monkeypatch.setattr("attnspec.conformance.harness.judge.DIAGNOSED_PAIRS", 2**8)
    monkeypatch.setattr("attnspec.conformance.harness.judge.DIAGNOSED_ROWS", 2)
    arguments = inputs(4, 500, batch=1)
    output, logarithms = attention(arguments)
    logarithms[0, HEADS - 1, 1] += 100
    verdict = judge(GROUPS, (output, logarithms), **arguments)
    assert verdict.worst is not None
    assert verdict.worst.index == (0, HEADS - 1, 1)
    assert verdict.diagnosis == ""


def test_results_with_an_entry_for_every_key_have_no_defects_of_keys() -> None:
    scores = normal(2, 5, 6)
    verdict = judge("softmax", REFERENCE["softmax"](scores), scores)
    assert verdict.cannot_see == ("not examined for softmax",)


@pytest.mark.parametrize(
    ("operation", "arguments", "message"),
    [
        ("causal_mask", ((), 3), r"causal_mask: n: expected an integer; got \(\)"),
        ("causal_mask", ({}, 3), "causal_mask: n: expected an integer; got {}"),
        ("dot_scores", (normal(3, 4), None), "dot_scores: key: expected an array, by DLPack or .*; got NoneType"),
    ],
)
def test_arguments_of_another_kind_are_refused(operation: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        judge(operation, np.ones((3, 3), np.float32), *arguments)
