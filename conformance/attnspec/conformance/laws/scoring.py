"""Checks of the laws of scorers."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import broadcast_batches, coarse, filtered_error, normal_like, sample, wide
from attnspec.conformance.laws.registry import proves
from attnspec.spec.laws import scoring as law


def _additive(subject: Subject, arguments: Arguments, rng: np.random.Generator, name: str) -> bool:
    """Additivity in one argument, on a grid on which the sum is exact."""
    first = subject.exact(coarse(arguments.array(name)))
    second = subject.exact(coarse(2 * rng.standard_normal(first.shape)))
    both = subject.exact(first.astype(np.float64) + second.astype(np.float64))
    parts = [arguments.with_(**{name: x}) for x in (first, second, both)]
    one, two, total = (subject.call(p) for p in parts)
    budget = sum((subject.budget(p) for p in parts), np.zeros(()))
    subject.matches(total, wide(one) + wide(two), budget, parts[2], f"the scores of the sum of two {name}s")
    return True


@proves(law.LINEARITY)
def linearity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Scores of a sum of queries."""
    return _additive(subject, arguments, rng, "query")


@proves(law.KEY_LINEARITY)
def key_linearity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Scores of a sum of keys."""
    return _additive(subject, arguments, rng, "key")


@proves(law.SYMMETRY)
def symmetry(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries as keys and keys as queries."""
    exchanged = arguments.with_(query=arguments["key"], key=arguments["query"])
    budget = subject.budget(arguments)
    got = subject.call(exchanged).swapaxes(-1, -2)
    subject.matches(
        got, wide(subject.call(arguments)), 2 * budget, arguments, "with query and key exchanged, the score"
    )
    return True


@proves(law.ROTATION_INVARIANCE)
def rotation_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """A rotation that every dtype represents exactly: a signed permutation of the coordinates."""
    d = arguments.size("d")
    order, signs = rng.permutation(d), rng.choice([-1, 1], d)

    def rotate(x: Numbers, axis: int) -> Numbers:
        return np.asarray(np.take(x, order, axis=axis) * signs.astype(x.dtype))

    rotated = arguments.along("d", rotate, "query", "key")
    budget = subject.budget(arguments)
    expected = wide(subject.call(arguments))
    subject.matches(subject.call(rotated), expected, 2 * budget, arguments, "after a rotation of both, the score")
    return True


@proves(law.SCALE, ensemble=True)
def scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The matched filter along the scores themselves."""
    given = normal_like(subject, arguments, rng)
    return given is not None and filtered_error(subject, given, subject.oracle(given).value)


@proves(law.PERCEPTRON)
def perceptron(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """[q; k_j] as a query of W = [W_q W_k], against a key of zeros."""
    m = arguments.size("m")
    if not m or subject.limits.head_sizes is not None:
        return False
    j = int(rng.integers(m))
    query, key = arguments.array("query"), arguments.array("key")
    query, chosen = broadcast_batches(query, key[..., j : j + 1, :], core=2)
    chosen = np.broadcast_to(chosen, (*query.shape[:-1], chosen.shape[-1]))
    batch = () if subject.limits.broadcasting else query.shape[:-2]
    joined = arguments.with_(
        query=np.concatenate([query, chosen], axis=-1),
        key=np.zeros((*batch, subject.limits.multiple_of, key.shape[-1]), key.dtype),
        w_q=np.concatenate([arguments["w_q"], arguments["w_k"]], axis=-1),
    )
    budget = subject.budget(arguments)[..., j : j + 1] + subject.budget(joined)[..., :1]
    expected = wide(subject.call(arguments)[..., j : j + 1])
    subject.matches(subject.call(joined)[..., :1], expected, budget, arguments, "the score of the concatenation")
    return True


@proves(law.ADDITIVE_BOUND)
def additive_bound(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The largest score against the sum of the weights, both given and with inputs that saturate."""
    saturated = arguments.with_(
        query=subject.exact(1e4 * np.sign(arguments["query"].astype(np.float64))),
        key=subject.exact(1e4 * np.sign(arguments["key"].astype(np.float64))),
    )
    judged_any = False
    for given in (arguments, saturated):
        if not subject.in_domain(given):
            continue
        got, budget = wide(subject.call(given)), subject.budget(given)
        bound = float(np.abs(wide(arguments.array("w_v"))).sum())
        excess = np.abs(got) - bound
        subject.holds(
            bool(np.all(excess <= np.where(np.isfinite(budget), budget, 0))),
            f"a score of magnitude {np.max(np.abs(got), initial=0.0):.9g} exceeds ‖w_v‖₁ = {bound:.9g}",
            given,
            expected=np.float64(bound),
            got=got,
        )
        judged_any = True
    return judged_any


@proves(law.ODDNESS)
def oddness(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Query and key negated."""
    negated = arguments.with_(query=-arguments["query"], key=-arguments["key"])
    budget = subject.budget(arguments)
    expected = -wide(subject.call(arguments))
    subject.matches(subject.call(negated), expected, 2 * budget, arguments, "with query and key negated, the score")
    return True


@proves(law.SATURATION, once=True)
def saturation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Identity projections of numbers from 10⁻³ to 10⁶, also with keys that all but cancel the queries."""
    largest = min(1e6, subject.precision.largest / 4)
    magnitudes = [x for x in (1e-3, 0.1, 1.0, 9.0, 20.0, 43.0, 60.0, 88.0, 89.0, 200.0, 1e3, 1e4, 1e6) if x <= largest]
    count = len(magnitudes)
    for offset in (0.0, 0.5, -1.0, 3.0, None):
        batch = (count,) if "state" in arguments else ()
        base = sample(subject, rng, batch, n=count, m=count, **WIDTHS)
        width = base.size("h")
        if base.array("w_q").shape != (width, width) or base.array("w_k").shape != (width, width):
            return False
        signs = rng.choice([-1.0, 1.0], (count, width))
        query = subject.exact(np.array(magnitudes)[:, None] * signs)
        if offset is None:
            key = subject.exact(np.array(magnitudes)[::-1, None] * rng.choice([-1.0, 1.0], (count, width)))
        else:
            key = subject.exact(offset - query.astype(np.float64))
        query_name, key_name = _projected(base)
        rows = base.array(query_name).shape[:-1]
        # as many as the backend's limits make of them
        keys = np.resize(key, (base.size("m"), width))
        queries = np.resize(query, (rows[-1], width)) if rows else query[rng.integers(count)]
        given = _unprojected(subject, base, queries, keys)
        if key_name == "annotations" and rows:
            given = given.with_(annotations=np.broadcast_to(keys, (*rows, *keys.shape)).copy())
        _within_budget(subject, given)
    _within_budget(subject, _opposed(subject, rng))
    _within_budget(subject, _opposed(subject, rng, one_sided=True))
    return True


WIDTHS = dict.fromkeys(("h", "d_q", "d_k", "d_s", "d_h"), 8)
"""Sizes with which projections can be identities."""


def _projected(arguments: Arguments) -> tuple[str, str]:
    """The names of what W_q and of what W_k projects."""
    return ("state", "annotations") if "state" in arguments else ("query", "key")


def _unprojected(subject: Subject, base: Arguments, query: Numbers, key: Numbers) -> Arguments:
    """Arguments whose projections are the query and the key themselves."""
    names = _projected(base)
    identities = {name: subject.exact(np.eye(*base.array(name).shape)) for name in ("w_q", "w_k")}
    return base.with_(**{names[0]: query, names[1]: key}, **identities)


def _within_budget(subject: Subject, given: Arguments) -> None:
    got, expected = subject.call(given), subject.oracle(given)
    subject.holds(
        bool(np.isfinite(wide(got)).all()), "the result is not finite", given, got=got, expected=expected.value
    )
    subject.matches(got, expected.value, expected.budget, given)


def _opposed(subject: Subject, rng: np.random.Generator, *, one_sided: bool = False) -> Arguments:
    """Queries of every magnitude up to where exponentials overflow, beside keys that cancel them to about ±8.

    Kernels take other paths from some magnitude on, which differs from kernel to kernel, and for queries from that for
    keys: with a step between magnitudes that is smaller than what is left, some pair lies on both sides of it. In a
    quarter of the hidden units of a key both add up instead. Where batches broadcast, two batches of keys share one of
    queries. `one_sided`, every query is negative, none is small and none shared: no exp(a + b) is large.
    """
    limits = subject.limits
    batches = limits.max_batch_dims > 0
    shared = limits.broadcasting and limits.max_batch_dims > 1 and not one_sided
    base = sample(subject, rng, (64, 2) if shared else (128,), n=2 if batches else 64, m=8 if batches else 64, **WIDTHS)
    of_query, of_key = (base.array(name).shape for name in _projected(base))
    if shared:
        of_query = (of_query[0], 1, *of_query[2:])
    reach = 1.2 * np.log(np.finfo(np.float64 if subject.dtype == "float64" else np.float32).max)
    least, agreeing = (0.25, 0.0) if one_sided else (0.0, 0.25)

    def magnitudes(shape: tuple[int, ...]) -> Numbers:
        count = int(np.prod(shape[:-1]))
        parts = least + (1 - least) * (np.arange(count) + rng.random(count)) / count
        return np.asarray(reach * parts).reshape(*shape[:-1], 1)

    signs = rng.choice([-1.0, 1.0], (*of_query[: len(base.batch)], 1, max(of_query[-1], of_key[-1])))
    if one_sided:
        signs = -np.abs(signs)
    of_queries = signs[..., 0, : of_query[-1]] if "state" in base else signs[..., : of_query[-1]]
    left = rng.uniform(-7, 7, (*of_key[:-1], 1)) + rng.uniform(-1, 1, of_key)
    against = np.where(rng.random(of_key) < agreeing, 1.0, -1.0) * signs[..., : of_key[-1]]
    query, key = of_queries * magnitudes(of_query), against * (magnitudes(of_key) + left)
    return _unprojected(subject, base, subject.exact(query), subject.exact(key))


@proves(law.SATURATION_GRADIENT, once=True)
def saturation_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Identity projections of every magnitude, of keys that all but cancel the queries or add up with them."""
    given = _opposed(subject, rng)
    cotangent = subject.exact(rng.standard_normal(subject.call(given).shape))
    expected, found = subject.gradients(given, cotangent), subject.vjp(given, cotangent)
    for name, (value, budget) in expected.items():
        if np.abs(value).max(initial=0.0) <= subject.precision.largest / 16:
            subject.matches(found[name], value, budget, given, f"the gradient of {name}")
    return True


@proves(law.TRANSLATION_INVARIANCE)
def translation_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries and keys shifted alike, on a grid on which the shift is exact."""
    near = arguments.with_(query=subject.exact(coarse(arguments["query"])), key=subject.exact(coarse(arguments["key"])))
    shift = float(rng.choice([-8.0, 4.0, 16.0]))
    far = near.with_(
        query=subject.exact(near["query"].astype(np.float64) + shift),
        key=subject.exact(near["key"].astype(np.float64) + shift),
    )
    budget = subject.budget(near)
    subject.matches(subject.call(far), wide(subject.call(near)), 2 * budget, far, f"shifted by {shift}, the score")
    return True


@proves(law.NONPOSITIVE)
def nonpositive(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The signs of all scores, and the scores of queries against themselves."""
    same = arguments.with_(key=arguments["query"])
    for given in (arguments, same):
        got = subject.call(given)
        subject.holds(
            not bool((got > 0).any()), f"a score is positive: {wide(got).max(initial=0.0):.9g}", given, got=got
        )
    got = subject.call(same)
    diagonal = np.diagonal(wide(got), axis1=-2, axis2=-1)
    budget = np.diagonal(subject.budget(same), axis1=-2, axis2=-1)
    subject.matches(diagonal, np.zeros(diagonal.shape), budget, same, "the score of a query against itself")
    return True
