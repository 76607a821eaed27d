"""Comparisons of the project's own tests: every number within its budget of the oracle, with no tolerance.

A budget follows from the precision class and from the inputs. Two honest results are compared by comparing each with
the oracle: they then differ by no more than the sum of both budgets, whatever processor computed them.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mpmath
import numpy as np

from attnspec.conformance.judging.comparison import INFORMATIVE
from attnspec.reference import REFERENCE
from attnspec.reference.attention import attend
from attnspec.reference.budget import Judged, judged, oracle_dtype
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.reference.budget.gradients import gradients
from attnspec.reference.budget.numbers import Numbers
from attnspec.reference.masking import joint_mask
from attnspec.reference.normalization import softmax
from attnspec.spec import Precision
from attnspec.spec import precision as class_of
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.tree import branches, flatten, map_tree

mp = mpmath.mp.clone()
mp.dps = 50

SIXTEEN_BITS = {"float16", "bfloat16"}

Formula = str | Callable[..., Any]
"""An operation's name, or a function of what the error arithmetic knows (``attnspec.reference.budget``)."""


def assert_within_budgets(
    result: Any, formula: Formula, *arguments: Any, precision: str | None = None, informative: bool = True,
    **options: Any,
) -> None:  # fmt: skip
    """Every number of ``result`` is within its budget of the formula's; a list holds several results.

    Where the oracle is NaN or infinite, so is the result. The class is that of the dtype, if not named. At least half
    of the numbers must have budgets of at most 3 % of the array's largest, as the suite asks; in 16 bits, one number.
    No number must where ``informative`` is false.
    """
    inputs = _named(formula, arguments, options)
    results = result if isinstance(result, list) else [result]
    p = _class(precision, results[0])

    def oracle(sampled: bool) -> dict[str, tuple[Numbers, Numbers]]:
        return dict(_judged("", judged(_function(formula), inputs, p, sampled=sampled)))

    _compare(results, oracle, p, informative)


def assert_within_roundings(result: Any, function: Callable[..., Any], x: Any, count: int) -> None:
    """Numbers are within ``count`` relative unit roundoffs of mpmath's function at 50 digits; NaN is NaN."""
    got, points = (np.asarray(_numbers("", v)) for v in (result, x))
    unit = mp.mpf(float(np.finfo(got.dtype).eps)) / 2
    for y, at in zip(got.ravel().tolist(), points.ravel().tolist(), strict=True):
        exact = function(mp.mpf(at))
        assert (y != y and at != at) or abs(mp.mpf(y) - exact) <= count * unit * abs(exact), (
            f"at {at!r}: expected {mp.nstr(exact, 20)} ± {count} roundings; got {y!r}"
        )


def assert_gradients_within_budgets(
    result: Any, cotangent: Any, formula: Formula, *arguments: Any, precision: str | None = None,
    informative: bool = True, **options: Any,
) -> None:  # fmt: skip
    """Gradients of ⟨cotangent, formula(…)⟩ are within budgets.

    They come in the order of the float arrays of the arguments. None stands for a gradient that is not compared, a list
    for several results.
    """
    inputs = _named(formula, arguments, options)
    results = result if isinstance(result, list) else [result]
    p, weights = _class(precision, results[0]), map_tree(cotangent, _numbers)

    def oracle(sampled: bool) -> dict[str, tuple[Numbers, Numbers]]:
        return gradients(_function(formula), inputs, weights, p, oracle_dtype(p.dtype), sampled=sampled)

    _compare(results, oracle, p, informative)


def assert_slopes_within_budgets(
    slopes: Any, directions: Mapping[str, Any], cotangent: Any, formula: Formula, *arguments: Any, **options: Any
) -> None:
    """Slopes d⟨cotangent, formula(… + t·direction …)⟩/dt at t = 0 are within budgets; directions by argument."""
    inputs = _named(formula, arguments, options)
    results = slopes if isinstance(slopes, list) else [slopes]
    p, weights = _class(None, results[0]), map_tree(cotangent, _numbers)
    along = {name: _numbers("", x) for name, x in directions.items()}

    def moved(t: Any, inputs: Mapping[str, Any]) -> Any:
        return _function(formula)(**{**inputs, **{name: inputs[name] + t * x for name, x in along.items()}})

    def oracle(sampled: bool) -> dict[str, tuple[Numbers, Numbers]]:
        at = {"t": np.zeros(()), "inputs": inputs}
        return {"t": gradients(moved, at, weights, p, oracle_dtype(p.dtype), sampled=sampled)["t"]}

    _compare(results, oracle, p)


def projected_additive_scores(a: Any, b: Any, w_v: Any) -> Any:
    """Additive scores of projected queries (…, n, h) and keys (…, m, h)."""
    return np.tanh(a[..., :, None, :] + b[..., None, :, :]) @ w_v


def projected_additive_attention(a: Any, b: Any, w_v: Any, value: Any, mask: Any = None, causal: bool = False) -> Any:
    """Additive attention of projected queries (…, n, h) and keys (…, m, h)."""
    return attend(projected_additive_scores(a, b, w_v), value, mask, causal)


def attention_gradients(
    query: Any, key: Any, value: Any, cotangent: Any, mask: Any = None, causal: bool = False, of_logarithms: Any = None
) -> tuple[Any, Any, Any]:
    """Gradients of ⟨cotangent, scaled dot-product attention⟩ as a formula: its own gradients are second derivatives.

    ``of_logarithms`` is the cotangent of the logarithm of the sum of every row.
    """
    scale = 1 / np.sqrt(query.shape[-1])
    allowed = joint_mask(mask, causal, query.shape[-2], key.shape[-2])
    weights = softmax(query @ np.swapaxes(key, -1, -2) * scale, mask=allowed)
    of_weights = cotangent @ np.swapaxes(value, -1, -2)
    of_sums = (weights * of_weights).sum(-1, keepdims=True)
    if of_logarithms is not None:
        of_sums = of_sums - of_logarithms[..., None]
    of_scores = weights * (of_weights - of_sums) * scale
    return of_scores @ key, np.swapaxes(of_scores, -1, -2) @ query, np.swapaxes(weights, -1, -2) @ cotangent


def _named(formula: Formula, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, as NumPy arrays; those that are None are left out."""
    bound = inspect.signature(_function(formula)).bind(*arguments, **options).arguments
    return {name: map_tree(x, _numbers) for name, x in bound.items() if x is not None}


def _function(formula: Formula) -> Callable[..., Any]:
    return REFERENCE[formula] if isinstance(formula, str) else formula


def _numbers(_: str, x: Any) -> Any:
    if not hasattr(x, "detach"):
        return x
    from attnspec.backends.bases.torch import to_numpy  # where PyTorch is not installed there are no tensors

    return to_numpy(x)


def _class(name: str | None, result: Any) -> Precision:
    arrays = (map_tree(x, _numbers) for x in flatten(result).values() if x is not None)
    return class_of(name or next(DEFAULTS[x.dtype.name] for x in arrays if x.dtype.name in DEFAULTS))


def _judged(path: str, x: Any) -> Iterator[tuple[str, tuple[Numbers, Numbers]]]:
    """Value and budget of every array of a judged result, by path."""
    if isinstance(x, Judged):
        yield path, (x.value, x.budget)
    else:
        for below, part in branches(x, path) or []:
            yield from _judged(below, part)


def _compare(
    results: list[Any], oracle: Callable[[bool], dict[str, tuple[Numbers, Numbers]]], p: Precision,
    informative: bool = True,
) -> None:  # fmt: skip
    """Compare every result; where a budget is exceeded, take deviations from samples too, as the suite does."""
    estimated = oracle(False)
    # Sums of differences cancel: in 16 bits few of them have informative budgets.
    if informative:
        _assert_informative(estimated, least=0.0 if p.dtype in SIXTEEN_BITS else 0.5)
    if list(_beyond(results, estimated)):
        wrong = list(_beyond(results, oracle(True)))
        assert not wrong, "\n".join(wrong)


def _assert_informative(wanted: dict[str, tuple[Numbers, Numbers]], least: float) -> None:
    """At least this part of the numbers, and at least one, have informative budgets; NaN and infinities need none."""
    informative = total = 0
    for value, budget in wanted.values():
        finite = np.isfinite(value)
        top = float(np.max(np.abs(value), where=finite, initial=0))
        informative += int((~finite | (budget <= (INFORMATIVE * top if top > 0 else UNKNOWN / 2))).sum())
        total += value.size
    needed = max(math.ceil(least * total), min(total, 1))
    assert informative >= needed, (
        f"inputs of the test: expected budgets of at most {INFORMATIVE:.0%} of the largest number for {needed} "
        f"of {total} numbers; got {informative}. The backend is not at fault: draw inputs on which fewer terms cancel"
    )


def _beyond(results: list[Any], wanted: dict[str, tuple[Numbers, Numbers]]) -> Iterator[str]:
    """The numbers that lie beyond their budgets, the worst of each array, in words."""
    for i, result in enumerate(results):
        for (path, (value, budget)), x in zip(wanted.items(), flatten(result).values(), strict=True):
            if x is None:
                continue
            if value.dtype.kind == "b":
                value = value.astype(np.int8)  # flags have no differences
            got = np.asarray(map_tree(x, _numbers)).astype(value.dtype)
            assert got.shape == value.shape, f"{path}: expected shape {value.shape}; got {got.shape}"
            with np.errstate(all="ignore"):
                error = np.where((got == value) | (np.isnan(got) & np.isnan(value)), 0, np.abs(got - value))
                ratio = np.where(error == 0, 0, np.where(error <= budget, 0, error / budget))
            ratio[np.isnan(ratio)] = np.inf
            if ratio.any():
                worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
                yield (
                    f"result {i}: {path or 'the array'}{[int(k) for k in worst]}: expected {value[worst]} ± "
                    f"{budget[worst]:.3g}; got {got[worst]}, {ratio[worst]:.3g} budgets away"
                )
