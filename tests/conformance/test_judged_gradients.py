"""``judge`` on large gradients: some keys, values and queries, each summed over all pairs."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.harness import backward, normalizers, sampled_gradients
from attnspec.conformance.harness.dot_gradients import Element, gradients_at, query_gradients
from attnspec.conformance.harness.normalizers import Attendance
from attnspec.conformance.harness.sum_variances import equal_groups
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference import REFERENCE
from attnspec.reference.budget.gradients import gradients
from attnspec.reference.scoring import scaled_dot_scores
from attnspec.spec.contract.precision import precision

SDPA = "scaled_dot_product_attention"
NAMES = ("query", "key", "value")
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
CLASSES = ("ieee32", "mixed-bfloat16", "mixed-float16", "eager-bfloat16")
FORMULA = REFERENCE[SDPA]


def normal(dtype: str, *shape: int, count: int = 4, seed: int = 0) -> list[Numbers]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for _ in range(count)]


def masks(n: int, m: int) -> dict[str, Numbers | None]:
    """Masks of several shapes; ``some`` and ``rows`` leave a row without keys."""
    some = np.random.default_rng(1).random((n, m)) < 0.6
    some[n // 2] = False
    return {"none": None, "padding": (np.arange(m) < m - 5)[None], "some": some, "rows": some[:, :1]}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("mask", masks(1, 1))
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_at_keys_fit_the_formula(name: str, mask: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The median budget is 0.1 to 2 times that of the whole formula."""
    monkeypatch.setattr(normalizers, "BLOCK_ROWS", 16)
    monkeypatch.setattr(normalizers, "BLOCK_KEYS", 24)
    p, (n, m, d) = precision(name), (48, 60, 16)
    (query,), (key, value) = (normal(p.dtype, rows, d, count=k, seed=k) for rows, k in ((n, 1), (m, 2)))
    (cotangent,) = normal(p.dtype, n, d, count=1, seed=3)
    allowed = masks(n, m)[mask]
    options: dict[str, Any] = {"mask": allowed, "causal": causal}
    arguments = {"query": query, "key": key, "value": value, **options}
    output = FORMULA(*(x.astype(np.float64) for x in (query, key, value)), **options)
    attendance = Attendance((n, m), allowed, 0 if causal else None)
    exact_gradients, single = (
        gradients(FORMULA, arguments, cotangent, q, np.float64) for q in (p, precision("ieee32"))
    )
    keys, rows = np.arange(1, m, 7), np.arange(2, n, 5)
    element = Element(query, key, value, cotangent, output, attendance)
    of_keys, of_values = gradients_at(keys, element, scaled_dot_scores, p)
    pairs = attendance.of_rows(rows)
    of_rows = query_gradients((query[rows], key, value, cotangent[rows]), pairs, scaled_dot_scores, p)
    for path, at, (got, budget) in (("key", keys, of_keys), ("value", keys, of_values), ("query", rows, of_rows)):
        exact, most = (x[at] for x in exact_gradients[path])
        # scores are computed in single precision
        assert (np.abs(got - exact) <= single[path][1][at]).all()
        assert 0.1 < np.median(budget[most > 0] / most[most > 0]) < 2
        assert np.all(budget[exact != 0] > 0)


def test_queries_before_a_key_do_not_contribute_to_its_gradient() -> None:
    p, (n, m, d) = precision("ieee32"), (40, 30, 8)
    (query, cotangent, output), (key, value) = normal("float32", n, d, count=3), normal("float32", m, d, count=2)
    keys = np.array([20, 29])
    for offset, first in ((0, 20), (-10, 30)):
        element = Element(query, key, value, cotangent, output, Attendance((n, m), None, offset))
        for all_rows, later_rows in zip(
            *(gradients_at(keys, x, scaled_dot_scores, p) for x in (element, element.from_row(first))), strict=True
        ):
            assert (np.abs(later_rows[0] - all_rows[0]) <= all_rows[1]).all()


def test_equal_errors_add_linearly() -> None:
    p, rows = precision("mixed-bfloat16"), np.ones((64, 1))
    factors = np.full(64, 0.5)
    # Terms of equal marks share one error; groups of at most 8 terms, and terms marked NaN, do not count.
    for marks, variance in (
        (np.zeros(64), 32.0**2),  # one group: (64 · 0.5)²
        (np.repeat([0.0, 1.0], 32), 2 * 16.0**2),  # two groups, independent of each other
        (np.arange(64.0), 0.0),  # 64 groups of one term
        (np.where(np.arange(64) < 20, 0.0, np.nan), 10.0**2),  # one group of 20 terms
    ):
        assert equal_groups(marks, p).variance(factors, rows) == variance


# ``judge`` ------------------------------------------------------------------------------------------------------------

HEADS, ROWS, FEATURES = 3, 320, 16


@pytest.fixture
def sizes_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that only samples are judged: 17 rows, and keys of two of three heads.

    2¹⁴ pairs are 17 rows of 320 keys in 3 heads. 2 · 320² pairs are two heads, or all three under a causal mask.
    """
    monkeypatch.setattr(backward, "MAX_PAIRS", 2**12)
    monkeypatch.setattr(backward, "JUDGED_PAIRS", 2**14)
    monkeypatch.setattr(sampled_gradients, "MAX_PAIRS", 2 * ROWS**2)


def attention_gradients(
    arguments: list[Numbers],
    cotangent: Numbers,
    causal: bool,
    *,
    masked: bool | None = None,
    subtracts_sum: bool = True,
    scale: float = FEATURES**-0.5,
) -> dict[str, Numbers]:
    """Gradients of attention in float64, rounded to bfloat16, with optional errors."""
    query, key, value, g = (x.astype(np.float64) for x in (*arguments, cotangent))
    scores = query @ key.swapaxes(-1, -2) * FEATURES**-0.5
    if causal if masked is None else masked:
        scores = np.where(np.tri(ROWS, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    weight_gradients = g @ value.swapaxes(-1, -2)
    weighted_sum = (weights * weight_gradients).sum(-1, keepdims=True) if subtracts_sum else 0.0
    score_gradients = weights * (weight_gradients - weighted_sum) * scale
    grads = score_gradients @ key, score_gradients.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ g
    return {path: x.astype(ml_dtypes.bfloat16) for path, x in zip(NAMES, grads, strict=True)}


def without_last(x: Numbers) -> Numbers:
    """A gradient whose last key has zeros."""
    return np.where(np.arange(ROWS)[:, None] == ROWS - 1, np.zeros((), x.dtype), x)


def verdict_on(causal: bool, change: Callable[..., dict[str, Numbers]], **options: Any) -> Any:
    """The verdict on changed gradients; ``options`` are errors of :func:`attention_gradients`."""
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    output = FORMULA(*(x.astype(np.float64) for x in arguments), causal=causal).astype(ml_dtypes.bfloat16)
    grads = attention_gradients(arguments, cotangent, causal)
    grads |= change(grads, attention_gradients(arguments, cotangent, causal, **options))
    return judge(SDPA, output, *arguments, causal=causal, gradients=grads, cotangent=cotangent)


@pytest.mark.usefixtures("sizes_of_models")
@pytest.mark.parametrize(
    ("causal", "description"),
    [(False, "at 16 keys of 2 of 3 elements of the batch"), (True, "at 16 keys of 3 of 3 elements of the batch")],
)
def test_right_gradients_are_accepted(causal: bool, description: str) -> None:
    verdict = verdict_on(causal, lambda grads, _: grads)
    assert verdict, verdict
    assert verdict.judged.endswith(f"the gradient of query in 17 rows, the gradients of key and value {description}")


@pytest.mark.usefixtures("sizes_of_models")
def test_gradients_that_sum_a_ramp_one_by_one_are_right() -> None:
    """The partial sums of the gradients of values grow and cancel."""
    rng = np.random.default_rng(0)
    query, key = (rng.standard_normal((n, FEATURES)).astype(np.float32) for n in (3000, 24))
    value = rng.standard_normal((24, FEATURES)).astype(np.float32)
    query[:] = 0
    cotangent = (np.linspace(-1, 1, 3000)[:, None] * rng.uniform(0.5, 2, FEATURES)).astype(np.float32)
    cotangent[:, -1] = 1  # whose gradients are so large that the budgets of the others are judged
    output = np.repeat(value.mean(0, keepdims=True, dtype=np.float64).astype(np.float32), 3000, 0)
    weight = np.float32(1 / 24)
    total = np.zeros(FEATURES, np.float32)
    for row in cotangent:
        total += weight * row
    grads = {"value": np.repeat(total[None], 24, 0)}
    assert judge(SDPA, output, query, key, value, gradients=grads, cotangent=cotangent)
    grads["value"][:, 0] += np.float32(0.1)
    assert not judge(SDPA, output, query, key, value, gradients=grads, cotangent=cotangent)


@pytest.mark.usefixtures("sizes_of_models")
def test_late_keys_of_every_element_are_judged_where_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_gradients, "MAX_PAIRS", ROWS**2 // 2)
    description = (
        "the gradient of value at 16 keys of 1 of 3 elements of the batch, and at 16 of the last 256 keys of the others"
    )
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    output = FORMULA(*(x.astype(np.float64) for x in arguments), causal=True).astype(ml_dtypes.bfloat16)
    value_gradient = attention_gradients(arguments, cotangent, True)["value"]
    for head in range(HEADS):
        wrong = np.where(np.arange(HEADS)[:, None, None] == head, without_last(value_gradient), value_gradient)
        verdict = judge(SDPA, output, *arguments, causal=True, gradients={"value": wrong}, cotangent=cotangent)
        assert verdict.worst is not None
        assert verdict.worst.index[:2] == (head, ROWS - 1)
        assert verdict.judged.endswith(description)


@pytest.mark.usefixtures("sizes_of_models")
def test_successive_seeds_judge_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_gradients, "MAX_PAIRS", ROWS**2)
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    output = FORMULA(*(x.astype(np.float64) for x in arguments)).astype(ml_dtypes.bfloat16)
    wrong = without_last(attention_gradients(arguments, cotangent, False)["value"])
    verdicts = [
        judge(SDPA, output, *arguments, gradients={"value": wrong}, cotangent=cotangent, seed=seed)
        for seed in range(HEADS)
    ]
    assert [v.worst.index[0] for v in verdicts if v.worst is not None] == [*range(HEADS)]


@pytest.mark.usefixtures("sizes_of_models")
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("keys", [ROWS - 40, ROWS + 40])
def test_causal_masks_are_aligned_as_declared(alignment: str, keys: int) -> None:
    (query, cotangent), (key, value) = (
        normal("float32", 2, rows, FEATURES, count=2, seed=rows) for rows in (ROWS, keys)
    )
    mask = np.tri(ROWS, keys, keys - ROWS if alignment == "bottom-right" else 0, dtype=bool)
    arguments = {"query": query, "key": key, "value": value, "mask": mask}
    output = FORMULA(**arguments)
    exact = gradients(FORMULA, arguments, cotangent, precision("ieee32"), np.float64)
    rounded = {path: exact[path][0].astype(np.float32) for path in NAMES}

    def verdict(semantics: str) -> Any:
        options: dict[str, Any] = {"causal": True, "gradients": rounded, "cotangent": cotangent}
        return judge(SDPA, output, query, key, value, semantics={"causal_alignment": semantics}, **options)

    assert verdict(alignment), verdict(alignment)
    assert not verdict({"top-left": "bottom-right", "bottom-right": "top-left"}[alignment])


@pytest.mark.usefixtures("sizes_of_models")
def test_gradients_of_nan_are_left_open() -> None:
    """A NaN in a query makes the gradients of all keys NaN, even masked ones."""
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    grads = attention_gradients(arguments, cotangent, True)
    arguments[0] = arguments[0].copy()
    arguments[0][0, 5, 3] = np.nan
    output = FORMULA(*(x.astype(np.float64) for x in arguments), causal=True).astype(ml_dtypes.bfloat16)
    with_nan = {
        path: np.where(np.arange(HEADS)[:, None, None] == 0, np.nan, x).astype(x.dtype) for path, x in grads.items()
    }
    verdict = judge(SDPA, output, *arguments, causal=True, gradients={"key": with_nan["key"]}, cotangent=cotangent)
    assert verdict, verdict
    assert verdict.left_open > 0


@pytest.mark.usefixtures("sizes_of_models")
def test_errors_of_gradients_are_plotted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="plots need it")
    monkeypatch.setattr(sampled_gradients, "MAX_PAIRS", ROWS**2 // 2)
    figure = verdict_on(True, lambda grads, _: grads).plot()
    assert [axis.get_title() for axis in figure.axes]


WRONG: dict[str, tuple[str, dict[str, Any], Callable[[Numbers], Numbers]]] = {
    "5 % more of keys": ("key", {}, lambda x: (1.05 * x.astype(np.float32)).astype(x.dtype)),
    "5 % more of values": ("value", {}, lambda x: (1.05 * x.astype(np.float32)).astype(x.dtype)),
    "5 % more of queries": ("query", {}, lambda x: (1.05 * x.astype(np.float32)).astype(x.dtype)),
    "no sum over the keys of a row": ("key", {"subtracts_sum": False}, lambda x: x),
    "the last key has no gradient": ("key", {}, without_last),
    "the last value has no gradient": ("value", {}, without_last),
    "gradients of another head": ("key", {}, lambda x: np.roll(x, 1, 0)),
    "the scale is applied twice": ("key", {"scale": 1 / FEATURES}, lambda x: x),
    "the causal mask is left out for keys": ("key", {"masked": False}, lambda x: x),
    "the causal mask is left out for values": ("value", {"masked": False}, lambda x: x),
}


@pytest.mark.usefixtures("sizes_of_models")
@pytest.mark.parametrize("error", WRONG)
def test_wrong_gradients_are_convicted(error: str) -> None:
    path, options, change = WRONG[error]
    for causal in (False, True):
        if causal or "causal" not in error:
            verdict = verdict_on(causal, lambda _, other: {path: change(other[path])}, **options)
            assert not verdict, verdict
            assert verdict.worst.of == f"the gradient of {path}"


@pytest.mark.usefixtures("sizes_of_models")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "some"])
@pytest.mark.parametrize("numbers", [0.01, 1.0, 3.0, 0.0])
def test_the_kernel_of_pytorch_is_right(dtype: str, mask: str, numbers: float) -> None:
    """The fused CPU kernel sums gradients in 16 bits; ``numbers`` near 0 make weights equal."""
    torch = pytest.importorskip("torch", reason="the kernel is PyTorch's")
    g = torch.Generator().manual_seed(0)
    query, key, value, cotangent = (torch.randn(2, HEADS, ROWS, 32, generator=g) for _ in range(4))
    query, key, value, cotangent = (
        x.to(getattr(torch, dtype)) for x in (numbers * query, numbers * key, value, cotangent)
    )
    arguments = [x.requires_grad_() for x in (query, key, value)]
    chosen_mask = masks(ROWS, ROWS).get(mask)
    allowed = None if chosen_mask is None else torch.from_numpy(chosen_mask | (np.arange(ROWS) == 0)).expand(ROWS, ROWS)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        output = torch.nn.functional.scaled_dot_product_attention(*arguments, allowed, is_causal=mask == "causal")
        output.backward(cotangent)
    options = {"causal": mask == "causal"} | ({} if allowed is None else {"mask": allowed})
    grads = {path: x.grad for path, x in zip(NAMES, arguments, strict=True)}
    verdict = judge(
        SDPA, output.detach(), *(x.detach() for x in arguments), gradients=grads, cotangent=cotangent, **options
    )
    assert verdict.worst is None, verdict
