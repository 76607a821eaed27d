"""Gradients of keys, values and queries at sizes of models: of some, from all pairs that they are made of."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.harness import backward, dots, normalizers
from attnspec.conformance.harness.normalizers import Attendance
from attnspec.conformance.harness.pair_gradients import Element, gradients_at, query_gradients
from attnspec.conformance.harness.summing import equals
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
    """Normal numbers, exact in the dtype."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for _ in range(count)]


def masks(n: int, m: int) -> dict[str, Numbers | None]:
    """Masks of all shapes, one of which leaves rows without a key."""
    some = np.random.default_rng(1).random((n, m)) < 0.6
    some[n // 2] = False
    return {"none": None, "padding": (np.arange(m) < m - 5)[None], "some": some, "rows": some[:, :1]}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("mask", masks(1, 1))
@pytest.mark.parametrize("causal", [False, True])
def test_they_are_those_of_the_formula(name: str, mask: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their budgets are about those that it has without what is added where scores of a row are equal."""
    monkeypatch.setattr(normalizers, "ROWS", 16)
    monkeypatch.setattr(normalizers, "KEYS", 24)
    p, (n, m, d) = precision(name), (48, 60, 16)
    (query,), (key, value) = (normal(p.dtype, rows, d, count=k, seed=k) for rows, k in ((n, 1), (m, 2)))
    (cotangent,) = normal(p.dtype, n, d, count=1, seed=3)
    allowed = masks(n, m)[mask]
    options: dict[str, Any] = {"mask": allowed, "causal": causal}
    given = {"query": query, "key": key, "value": value, **options}
    output = FORMULA(*(x.astype(np.float64) for x in (query, key, value)), **options)
    attendance = Attendance((n, m), allowed, 0 if causal else None)
    wanted, single = (gradients(FORMULA, given, cotangent, q, np.float64) for q in (p, precision("ieee32")))
    keys, rows = np.arange(1, m, 7), np.arange(2, n, 5)
    element = Element(query, key, value, cotangent, output, attendance)
    of_keys, of_values = gradients_at(keys, element, scaled_dot_scores, p)
    pairs = attendance.of_rows(rows)
    of_rows = query_gradients(query[rows], key, value, cotangent[rows], pairs, scaled_dot_scores, p)
    for path, at, (found, budget) in (("key", keys, of_keys), ("value", keys, of_values), ("query", rows, of_rows)):
        exact, most = (x[at] for x in wanted[path])
        # scores are computed in single precision
        assert (np.abs(found - exact) <= single[path][1][at]).all()
        assert 0.1 < np.median(budget[most > 0] / most[most > 0]) < 2
        assert np.all(budget[exact != 0] > 0)


def test_rows_before_the_first_that_attends_to_a_key_do_not_matter() -> None:
    p, (n, m, d) = precision("ieee32"), (40, 30, 8)
    (query, cotangent, output), (key, value) = normal("float32", n, d, count=3), normal("float32", m, d, count=2)
    keys = np.array([20, 29])
    for offset, first in ((0, 20), (-10, 30)):
        whole = Element(query, key, value, cotangent, output, Attendance((n, m), None, offset))
        for all_rows, late in zip(
            *(gradients_at(keys, x, scaled_dot_scores, p) for x in (whole, whole.behind(first))), strict=True
        ):
            assert (np.abs(late[0] - all_rows[0]) <= all_rows[1]).all()


def test_equal_errors_add_linearly() -> None:
    p, rows = precision("mixed-bfloat16"), np.ones((64, 1))
    factors = np.full(64, 0.5)
    for marks, variance in (
        (np.zeros(64), 32.0**2),
        (np.repeat([0.0, 1.0], 32), 2 * 16.0**2),
        (np.arange(64.0), 0.0),
        (np.where(np.arange(64) < 20, 0.0, np.nan), 10.0**2),
    ):
        assert equals(marks, p).variance(factors, rows) == variance


# ``judge`` ------------------------------------------------------------------------------------------------------------

HEADS, ROWS, FEATURES = 3, 320, 16


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged as if the sizes were those of models: keys of two of three heads."""
    monkeypatch.setattr(backward, "MOST_PAIRS", 2**12)
    monkeypatch.setattr(backward, "PAIRS", 2**14)
    monkeypatch.setattr(dots, "ALL_PAIRS", 2 * ROWS**2)


def backwards(
    arguments: list[Numbers],
    cotangent: Numbers,
    causal: bool,
    *,
    attended: bool | None = None,
    inner: bool = True,
    scale: float = FEATURES**-0.5,
) -> dict[str, Numbers]:
    """The gradients of attention in double precision, rounded to bfloat16, with what may go wrong in them."""
    query, key, value, g = (x.astype(np.float64) for x in (*arguments, cotangent))
    scores = query @ key.swapaxes(-1, -2) * FEATURES**-0.5
    if causal if attended is None else attended:
        scores = np.where(np.tri(ROWS, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    of_weights = g @ value.swapaxes(-1, -2)
    rest = (weights * of_weights).sum(-1, keepdims=True) if inner else 0.0
    of_scores = weights * (of_weights - rest) * scale
    found = of_scores @ key, of_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ g
    return {path: x.astype(ml_dtypes.bfloat16) for path, x in zip(NAMES, found, strict=True)}


def without_last(x: Numbers) -> Numbers:
    """The same with zeros for the last key."""
    return np.where(np.arange(ROWS)[:, None] == ROWS - 1, np.zeros((), x.dtype), x)


def verdict_on(causal: bool, change: Callable[..., dict[str, Numbers]], **options: Any) -> Any:
    """The verdict on gradients that are changed; ``options`` are those of :func:`backwards`."""
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    output = FORMULA(*(x.astype(np.float64) for x in arguments), causal=causal).astype(ml_dtypes.bfloat16)
    found = backwards(arguments, cotangent, causal)
    found |= change(found, backwards(arguments, cotangent, causal, **options))
    return judge(SDPA, output, *arguments, causal=causal, gradients=found, cotangent=cotangent)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("causal", "words"),
    [
        (False, "at 16 keys of 2 of 3 elements of the batch"),
        (True, "at 16 keys of 3 of 3 elements of the batch"),
    ],
)
def test_what_is_right(causal: bool, words: str) -> None:
    verdict = verdict_on(causal, lambda found, _: found)
    assert verdict, verdict
    assert verdict.judged.endswith(f"the gradient of query in 17 rows, the gradients of key and value {words}")


@pytest.mark.usefixtures("small")
def test_late_keys_reach_all_elements_where_attention_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dots, "ALL_PAIRS", ROWS**2 // 2)
    words = (
        "the gradient of value at 16 keys of 1 of 3 elements of the batch, and at 16 of the last 256 keys of the others"
    )
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    output = FORMULA(*(x.astype(np.float64) for x in arguments), causal=True).astype(ml_dtypes.bfloat16)
    found = backwards(arguments, cotangent, True)["value"]
    for head in range(HEADS):
        wrong = np.where(np.arange(HEADS)[:, None, None] == head, without_last(found), found)
        verdict = judge(SDPA, output, *arguments, causal=True, gradients={"value": wrong}, cotangent=cotangent)
        assert verdict.worst is not None
        assert verdict.worst.index[:2] == (head, ROWS - 1)
        assert verdict.judged.endswith(words)


@pytest.mark.usefixtures("small")
def test_successive_seeds_come_to_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dots, "ALL_PAIRS", ROWS**2)
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    output = FORMULA(*(x.astype(np.float64) for x in arguments)).astype(ml_dtypes.bfloat16)
    wrong = without_last(backwards(arguments, cotangent, False)["value"])
    verdicts = [
        judge(SDPA, output, *arguments, gradients={"value": wrong}, cotangent=cotangent, seed=seed)
        for seed in range(HEADS)
    ]
    assert [v.worst.index[0] for v in verdicts if v.worst is not None] == [*range(HEADS)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("keys", [ROWS - 40, ROWS + 40])
def test_causal_masks_are_aligned_as_declared(alignment: str, keys: int) -> None:
    (query, cotangent), (key, value) = (
        normal("float32", 2, rows, FEATURES, count=2, seed=rows) for rows in (ROWS, keys)
    )
    mask = np.tri(ROWS, keys, keys - ROWS if alignment == "bottom-right" else 0, dtype=bool)
    given = {"query": query, "key": key, "value": value, "mask": mask}
    output = FORMULA(**given)
    exact = gradients(FORMULA, given, cotangent, precision("ieee32"), np.float64)
    found = {path: exact[path][0].astype(np.float32) for path in NAMES}

    def verdict(semantics: str) -> Any:
        of: dict[str, Any] = {"causal": True, "gradients": found, "cotangent": cotangent}
        return judge(SDPA, output, query, key, value, semantics={"causal_alignment": semantics}, **of)

    assert verdict(alignment), verdict(alignment)
    assert not verdict({"top-left": "bottom-right", "bottom-right": "top-left"}[alignment])


@pytest.mark.usefixtures("small")
def test_what_becomes_of_nan_is_left_open() -> None:
    """Which a row of the queries brings to the gradients of all keys, also of those that it does not attend to."""
    *arguments, cotangent = normal("bfloat16", HEADS, ROWS, FEATURES)
    found = backwards(arguments, cotangent, True)
    arguments[0] = arguments[0].copy()
    arguments[0][0, 5, 3] = np.nan
    output = FORMULA(*(x.astype(np.float64) for x in arguments), causal=True).astype(ml_dtypes.bfloat16)
    of = {path: np.where(np.arange(HEADS)[:, None, None] == 0, np.nan, x).astype(x.dtype) for path, x in found.items()}
    verdict = judge(SDPA, output, *arguments, causal=True, gradients={"key": of["key"]}, cotangent=cotangent)
    assert verdict, verdict
    assert verdict.left_open > 0


@pytest.mark.usefixtures("small")
def test_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="plots need it")
    monkeypatch.setattr(dots, "ALL_PAIRS", ROWS**2 // 2)
    drawn = verdict_on(True, lambda found, _: found).plot()
    assert [axis.get_title() for axis in drawn.axes]


WRONG: dict[str, tuple[str, dict[str, Any], Callable[[Numbers], Numbers]]] = {
    "5 % more of keys": ("key", {}, lambda x: (1.05 * x.astype(np.float32)).astype(x.dtype)),
    "5 % more of values": ("value", {}, lambda x: (1.05 * x.astype(np.float32)).astype(x.dtype)),
    "5 % more of queries": ("query", {}, lambda x: (1.05 * x.astype(np.float32)).astype(x.dtype)),
    "no sum over the keys of a row": ("key", {"inner": False}, lambda x: x),
    "the last key has no gradient": ("key", {}, without_last),
    "the last value has no gradient": ("value", {}, without_last),
    "gradients of another head": ("key", {}, lambda x: np.roll(x, 1, 0)),
    "the scale is applied twice": ("key", {"scale": 1 / FEATURES}, lambda x: x),
    "the causal mask is left out for keys": ("key", {"attended": False}, lambda x: x),
    "the causal mask is left out for values": ("value", {"attended": False}, lambda x: x),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong(what: str) -> None:
    path, options, change = WRONG[what]
    for causal in (False, True):
        if causal or "causal" not in what:
            verdict = verdict_on(causal, lambda _, other: {path: change(other[path])}, **options)
            assert not verdict, verdict
            assert verdict.worst.of == f"the gradient of {path}"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "some"])
@pytest.mark.parametrize("numbers", [0.01, 1.0, 3.0, 0.0])
def test_the_kernel_of_pytorch_is_right(dtype: str, mask: str, numbers: float) -> None:
    """The fused one of the CPU, which adds gradients up in 16 bits, and weights that are all nearly equal."""
    torch = pytest.importorskip("torch", reason="the kernel is PyTorch's")
    g = torch.Generator().manual_seed(0)
    query, key, value, cotangent = (torch.randn(2, HEADS, ROWS, 32, generator=g) for _ in range(4))
    query, key, value, cotangent = (
        x.to(getattr(torch, dtype)) for x in (numbers * query, numbers * key, value, cotangent)
    )
    given = [x.requires_grad_() for x in (query, key, value)]
    found = masks(ROWS, ROWS).get(mask)
    allowed = None if found is None else torch.from_numpy(found | (np.arange(ROWS) == 0)).expand(ROWS, ROWS)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        output = torch.nn.functional.scaled_dot_product_attention(*given, allowed, is_causal=mask == "causal")
        output.backward(cotangent)
    options = {"causal": mask == "causal"} | ({} if allowed is None else {"mask": allowed})
    of = {path: x.grad for path, x in zip(NAMES, given, strict=True)}
    verdict = judge(SDPA, output.detach(), *(x.detach() for x in given), gradients=of, cotangent=cotangent, **options)
    assert verdict.worst is None, verdict
