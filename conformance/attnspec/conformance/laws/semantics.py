"""Probes: what a backend does where the specification leaves a choice, against what it declares."""

from collections.abc import Callable, Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.subject import Subject, Violation
from attnspec.conformance.laws.common import live_rows, plain, pooled_name, sample, wide
from attnspec.conformance.laws.masking import attended
from attnspec.conformance.laws.registry import Function, proves
from attnspec.reference import REFERENCE
from attnspec.spec.contract.semantics import QUESTIONS
from attnspec.spec.laws.semantics import SEMANTICS

Seen = list[tuple[str, Arguments]]
"""What was observed, each with the call that shows it; empty where there is nothing to observe."""

Probe = Callable[[Subject, np.random.Generator], Seen]

SIZES: tuple[tuple[tuple[int, ...], dict[str, int]], ...] = (
    ((), {"n": 2, "m": 3}),
    ((2,), {"n": 3, "m": 5}),
    ((2, 2), {"n": 17, "m": 33, "d": 16, "d_v": 16}),
    ((2,), {"n": 3, "m": 130, "d": 8, "d_v": 8}),
)
"""Kernels differ by rank and size, and choose differently."""


def _samples(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    for batch, sizes in SIZES:
        small = len(batch) <= subject.limits.max_batch_dims
        yield sample(subject, rng, batch if small else (), **sizes)


def probes(question: str) -> Callable[[Probe], Probe]:
    """Make the law of a question out of a probe that says what it observed."""

    def register(probe: Probe) -> Probe:
        def check(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
            declared = getattr(subject.semantics, question)
            seen = probe(subject, rng)
            observed = " and ".join(dict.fromkeys(word for word, _ in seen)) or declared
            subject.observed[question] = observed
            if observed != declared:
                known = observed in QUESTIONS[question].choices
                meant = f'; if that is meant, declare semantics = {{"{question}": "{observed}"}}' if known else ""
                raise Violation(
                    f"{question}: declared {declared}, observed {observed}{meant}", reason="declared",
                    arguments=next(given for word, given in seen if word != declared), expected=declared, got=observed,
                )  # fmt: skip
            return True

        check.__doc__ = probe.__doc__
        function: Function = check
        proves(SEMANTICS[question], once=True)(function)
        return probe

    return register


@probes("fully_masked")
def fully_masked(subject: Subject, rng: np.random.Generator) -> Seen:
    """Rows without attendable keys, some among others and all together."""
    seen: Seen = []
    for given in _samples(subject, rng):
        shape = mask_shape(given)
        some = rng.random(shape) < 0.6
        some[(..., 0, slice(None)) if some.ndim > 1 else ...] = False
        for mask in (some, np.zeros(shape, bool)):
            masked = given.with_(mask=mask)
            got = wide(subject.call(masked))
            dead = np.broadcast_to(~live_rows(subject, masked), got.shape)
            even = _even(masked, got.shape)
            seen.append((_classified(got[dead], even[dead], subject), masked))
    return seen


def _even(given: Arguments, shape: tuple[int, ...]) -> Numbers:
    """What equal weights over all keys give."""
    name = given.operation.name
    if name == "softmax":
        return np.full(shape, 1 / shape[-1])
    values = dict(given) | {k: wide(x) if x.dtype != bool else x for k, x in given.arrays.items()}
    if name in ("self_attention", "nadaraya_watson"):
        return np.broadcast_to(values[pooled_name(given)].mean(-2, keepdims=True), shape)
    # Projections of 0, or queries of 0, score all keys alike.
    for argument in ("w_q", "w_k") if "w_q" in given else ("query",):
        if argument in given:
            values[argument] = np.zeros_like(values[argument])
    return np.broadcast_to(REFERENCE[name](**{**values, "mask": None}), shape)


def _classified(got: Numbers, even: Numbers, subject: Subject) -> str:
    if (got == 0).all():
        return "zero"
    if np.isnan(got).all():
        return "nan"
    coarse_unit = max(subject.precision.accumulation, subject.precision.output, subject.precision.operand)
    near = np.abs(got - even) <= 64 * coarse_unit * max(float(np.abs(even).max(initial=0.0)), 1.0)
    return "uniform" if near.all() else "something else"


@probes("no_keys")
def no_keys(subject: Subject, rng: np.random.Generator) -> Seen:
    """Attention over no keys at all."""
    seen: Seen = []
    for given in _samples(subject, rng):
        name = "m" if "m" in given.binding.sizes else "n"
        empty = given.along(name, lambda x, axis: np.take(x, [], axis=axis))
        got = subject.outcome(subject.converted(empty))
        if isinstance(got, Raised):
            seen.append(("error", empty))
            continue
        got = np.asarray(got)
        if name == "n":
            return []  # no keys means no queries either: there is nothing to observe
        expected = empty.binding.shape(subject.operation.result.dims)
        if got.shape != expected:
            raise Violation(
                f"with no keys the result has shape {got.shape}, expected {expected}", reason="shape", arguments=empty
            )
        word = "zero" if (got == 0).all() else "nan" if np.isnan(wide(got)).all() else "something else"
        seen.append((word, empty))
    return seen


@probes("causal_alignment")
def causal_alignment(subject: Subject, rng: np.random.Generator) -> Seen:
    """More keys than queries, and more queries than keys, under `causal`."""
    seen: Seen = []
    for batch, sizes in (
        ((), {"n": 2, "m": 5}),
        ((2,), {"n": 5, "m": 3}),
        ((2, 2), {"n": 17, "m": 40, "d": 16, "d_v": 16}),
    ):
        given = sample(subject, rng, batch if len(batch) <= subject.limits.max_batch_dims else (), **sizes)
        if given.size("n") == given.size("m"):
            continue
        given = given.with_(causal=True)
        got = subject.call(given)
        matching = []
        for name, bottom_right in (("top-left", False), ("bottom-right", True)):
            mask = attendable(given, bottom_right=bottom_right)
            spelled = plain(given).with_(mask=mask)
            oracle = subject.normative_oracle(spelled)
            live = np.broadcast_to(np.expand_dims(mask.any(-1), -1), got.shape)
            error = np.abs(wide(got) - oracle.value)
            if (error <= oracle.budget)[live].all():
                matching.append(name)
        seen.append((matching[0] if matching else "something else", given))
    return seen


@probes("masked_nonfinite")
def masked_nonfinite(subject: Subject, rng: np.random.Generator) -> Seen:
    """NaN and infinities at keys that nobody may attend to, and at keys that some may."""
    seen: Seen = []
    for given in _samples(subject, rng):
        shape = mask_shape(given)
        if not shape[-1]:
            continue
        for everybody in (True, False):
            mask = np.ones(shape, bool)
            mask[..., -1] = False
            if not everybody and len(subject.operation.argument("mask").core) > 1:
                mask[..., -1, -1] = True
            masked = plain(given).with_(mask=mask)
            clean = subject.call(masked)
            budget = subject.budget(masked)
            for i, name in enumerate((*attended(masked), *(["scores"] if "scores" in masked else []))):
                poison = np.nan if (i + everybody) % 2 else np.inf
                seen.append(_leak(subject, masked, mask, clean, budget, name, poison))
    return [found for found in seen if found[0] == "propagates"] or seen


def _leak(
    subject: Subject, masked: Arguments, mask: Numbers, clean: Numbers, budget: Numbers, name: str, poison: float
) -> tuple[str, Arguments]:
    """Whether a number that is not finite, at the last key, reaches a row that may not attend to it."""
    x = masked.array(name).copy()
    if name == "scores":
        x = np.array(np.broadcast_to(x, mask.shape))
        x[..., -1] = poison
    else:
        x[..., -1, :] = poison
    poisoned = masked.with_(**{name: x})
    got = np.asarray(subject.call(poisoned))
    rows = ~mask[..., -1][..., None]
    if name == "x" and "memory" not in masked:
        rows = rows & (np.arange(mask.shape[-2])[:, None] < mask.shape[-2] - 1)
    rows = np.broadcast_to(rows, got.shape)
    with np.errstate(invalid="ignore"):
        kept = np.abs(wide(got)[rows] - wide(clean)[rows]) <= 2 * np.broadcast_to(budget, got.shape)[rows]
    return "excluded" if kept.all() else "propagates", poisoned


@probes("odd_encoding")
def odd_encoding(subject: Subject, rng: np.random.Generator) -> Seen:
    """Encodings of odd width."""
    seen: Seen = []
    for n, d in ((3, 5), (4, 1), (2, 7)):
        given = Arguments(subject.operation, {"n": n, "d": d})
        got = subject.outcome(subject.converted(given))
        if isinstance(got, Raised):
            seen.append(("error", given))
            continue
        got = np.asarray(got)
        if got.shape != (n, d):
            seen.append(("something else", given))
            continue
        oracle = subject.oracle(given)
        near = np.abs(wide(got) - oracle.value) <= oracle.budget
        seen.append(("unpaired-sine" if near.all() else "something else", given))
    return seen


@probes("repeatability")
def repeatability(subject: Subject, rng: np.random.Generator) -> Seen:
    """The same call several times. Equal bits never refute a declaration of `within-budget`."""
    given = list(_repeated(subject, rng))
    for arguments in given:
        first = subject.call(arguments)
        for _ in range(4):
            again = subject.call_anew(arguments)
            if not np.array_equal(again, first, equal_nan=first.dtype != bool):
                return [("within-budget", arguments)]
    return []


def _repeated(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    if subject.operation.float_arguments:
        yield from _samples(subject, rng)
    else:
        yield Arguments(subject.operation, {"n": 33, "d": 16})
