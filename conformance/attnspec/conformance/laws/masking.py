"""Checks of the laws of masks, and of attention under them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.profiles import NARROW
from attnspec.conformance.judging.subject import Subject, Violation
from attnspec.conformance.laws.common import (
    aligned,
    batched,
    causal,
    element,
    key_axis_size,
    live_rows,
    plain,
    sample,
    wide,
)
from attnspec.conformance.laws.registry import proves
from attnspec.spec.laws import masking as law


def attended(arguments: Arguments) -> list[str]:
    """The arguments whose rows are attended to; x is, unless there is a memory."""
    names = ["key", "value", "annotations", "memory"]
    return [name for name in (names if "memory" in arguments else [*names, "x"]) if name in arguments]


def _replaced(
    arguments: Arguments, chosen: Numbers, rng: np.random.Generator, subject: Subject, scale: float
) -> Arguments:
    """Other finite numbers in the chosen rows (a boolean for each key) of everything that is attended to."""
    changes = {}
    for name in attended(arguments):
        x = arguments.array(name)
        other = subject.exact(scale * rng.standard_normal(x.shape))
        changes[name] = np.where(chosen[:, None], other, x)
    return arguments.with_(**changes)


def _future(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> tuple[Arguments, int] | None:
    """The arguments under a causal mask, and a position with keys behind it."""
    given = causal(arguments)
    n, m = given.size("n"), key_axis_size(given)
    if n < 1 or m < 2 or not aligned(subject, given):
        return None
    return given, int(rng.integers(min(n, m - 1)))


@proves(law.FUTURE_INVARIANCE)
def future_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Everything behind a position is replaced."""
    found = _future(subject, arguments, rng)
    if found is None:
        return False
    given, i = found
    changed = _replaced(given, np.arange(key_axis_size(given)) > i, rng, subject, 1.0)
    before, after = subject.call(given)[..., : i + 1, :], subject.call(changed)[..., : i + 1, :]
    what = f"after a change behind position {i}, the result up to it"
    subject.same(after, before, lambda: subject.budget(given)[..., : i + 1, :], changed, what)
    return True


@proves(law.PREFIX)
def prefix(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries and keys cut off behind a position."""
    found = _future(subject, arguments, rng)
    if found is None:
        return False
    given, i = found
    length = -(-(i + 1) // subject.limits.multiple_of) * subject.limits.multiple_of
    if length > min(given.size("n"), key_axis_size(given)):
        return False
    cut = given.along("n", keep(length))
    if "m" in given.binding.sizes:
        cut = cut.along("m", keep(length))
    expected, budget = wide(subject.call(given))[..., :length, :], subject.budget(given)[..., :length, :]
    subject.matches(subject.call(cut), expected, 2 * budget, given, f"the result of the first {length} alone")
    return True


@proves(law.FUTURE_GRADIENT)
def future_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Gradients of the results up to a position with respect to what stands behind it."""
    found = _future(subject, arguments, rng)
    if found is None:
        return False
    given, i = found
    if subject.semantics.fully_masked != "zero" and not live_rows(subject, given).all():
        return False
    result = subject.call(given)
    cotangent = subject.exact(rng.standard_normal(result.shape))
    cotangent[..., i + 1 :, :] = 0
    gradients = subject.vjp(given, cotangent)
    for name in attended(given):
        behind = gradients[name][..., i + 1 :, :]
        subject.holds(
            not bool(np.any(behind != 0)),
            f"the gradient of {name} behind position {i} is not 0",
            given,
            got=gradients[name],
            expected=np.where(np.arange(gradients[name].shape[-2])[:, None] > i, 0.0, wide(gradients[name])),
        )
    return True


@proves(law.CAUSAL_IS_A_MASK)
def causal_is_a_mask(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The same mask, spelled out."""
    given = causal(arguments)
    bottom_right = subject.semantics.causal_alignment == "bottom-right"
    spelled = plain(given).with_(mask=attendable(given, bottom_right=bottom_right))
    budget = subject.budget(given)
    expected = wide(subject.call(spelled))
    subject.matches(subject.call(given), expected, 2 * budget, given, "with `causal`, the result")
    return True


@proves(law.GARBAGE)
def garbage(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Some keys that nobody may attend to, and large numbers stored there."""
    keys = key_axis_size(arguments)
    if not keys:
        return False
    hidden = rng.random(keys) < 0.4
    hidden[int(rng.integers(keys))] = True
    shape = mask_shape(arguments)
    given_mask = True if arguments.mask is None else arguments.mask
    given = arguments.with_(mask=np.array(np.broadcast_to(given_mask & ~hidden, shape)))
    scale = 100.0 if subject.dtype == "float16" else 1e6
    changed = _replaced(given, hidden, rng, subject, scale)
    # The rows of x are queries too: only the results of those that stayed the same are compared.
    rows: Any = (..., ~hidden, slice(None)) if "x" in given and "memory" not in given else ...
    before, after = subject.call(given)[rows], subject.call(changed)[rows]
    what = "with other numbers under the mask, the result"
    subject.same(after, before, lambda: subject.budget(given)[rows], changed, what)
    return True


@proves(law.NONFINITE_GRADIENT, once=True)
def nonfinite_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Gradients with NaN and infinities where nobody may attend to, and in queries that attend to nothing."""
    if subject.semantics.masked_nonfinite != "excluded":
        return False
    for given, left_out in _left_out(subject, rng):
        cotangent = subject.exact(rng.standard_normal(given.binding.shape(subject.operation.result.dims)))
        expected = subject.gradients(given, cotangent)
        for name, rows in left_out.items():
            x = wide(given.array(name))
            poison = rng.choice([np.nan, np.inf, -np.inf], x.shape)
            poisoned = given.with_(**{name: subject.exact(np.where(rows[..., None], poison, x))})
            found = subject.vjp(poisoned, cotangent)
            for other in (a.name for a in batched(given) if a.name in expected):
                what = f"with NaN or infinities in rows of {name} that are left out, the gradient of {other}"
                subject.matches(found[other], *expected[other], poisoned, what)
    return True


def _left_out(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[Arguments, dict[str, Numbers]]]:
    """Arguments, and for some of them the rows on which nothing may depend. Kernels differ by size."""
    small, hidden, idle = _masked(subject, rng, n=3, m=5)
    asking = [name for name in ("query", "state", "x") if name in small]
    yield small, dict.fromkeys(attended(small), hidden) | dict.fromkeys(asking, idle)
    if subject.dtype in NARROW:
        return
    few, hidden, idle = _masked(subject, rng, n=2, m=420, d=16, d_k=16, d_v=16)
    yield few, {attended(few)[0]: hidden} | dict.fromkeys(asking, idle)
    if few.operation.takes("causal") and aligned(subject, few):
        more, _, _ = _masked(subject, rng, n=17, m=33)
        behind = np.arange(key_axis_size(more)) >= more.size("n")
        yield more.with_(mask=None, causal=True), {attended(more)[0]: behind}


def _masked(subject: Subject, rng: np.random.Generator, **sizes: int) -> tuple[Arguments, Numbers, Numbers]:
    """Arguments under a mask, which keys nobody may attend to, and which queries attend to nothing."""
    given = sample(subject, rng, (2,) if subject.limits.max_batch_dims else (), **sizes)
    *rows, m = mask_shape(given)
    hidden = rng.random(m) < 0.4
    hidden[[0, -1]] = False, True
    idle = np.arange(np.prod(rows, dtype=int)).reshape(rows) % 5 == 1
    idle &= subject.semantics.fully_masked == "zero"
    mask = (rng.random((*rows, m)) < 0.7) | (np.arange(m) == 0)
    return given.with_(mask=mask & ~hidden & ~idle[..., None]), hidden, idle


@proves(law.TRUNCATION)
def truncation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Keys behind a length masked, and cut off."""
    m, multiple = arguments.size("m"), subject.limits.multiple_of
    if m < 2 or (arguments.causal and not aligned(subject, arguments)):
        return False
    length = -(-int(rng.integers(1, m)) // multiple) * multiple
    bottom_right = subject.semantics.causal_alignment == "bottom-right"
    if length >= m or (arguments.causal and bottom_right):
        return False
    shape = mask_shape(arguments)
    base = np.broadcast_to(True if arguments.mask is None else arguments.mask, shape)
    padded = arguments.with_(mask=base & (np.arange(m) < length))
    cut = arguments.with_(mask=np.array(base)).along("m", keep(length))
    expected, budget = wide(subject.call(cut)), subject.budget(padded)
    subject.matches(
        subject.call(padded), expected, 2 * budget, padded, f"with keys masked from {length} on, the result"
    )
    return True


@proves(law.MASK_BROADCASTING)
def mask_broadcasting(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Masks with some dimensions of size 1, and the same masks repeated."""
    judged = False
    for given, collapsed in _collapsed(subject, arguments, rng):
        small = rng.random(collapsed) < 0.6
        full = np.array(np.broadcast_to(small, np.broadcast_shapes(collapsed, mask_shape(given))))
        if small.shape == full.shape or not small.size:
            continue
        narrow, wide_mask = given.with_(mask=small), given.with_(mask=full)
        budget = subject.budget(narrow)
        expected = wide(subject.call(wide_mask))
        subject.matches(subject.call(narrow), expected, 2 * budget, narrow, "under a mask that broadcasts, the result")
        judged = True
    return judged


def _collapsed(
    subject: Subject, arguments: Arguments, rng: np.random.Generator
) -> Iterator[tuple[Arguments, tuple[int, ...]]]:
    """Shapes of masks that broadcast, with arguments in whose shapes they may be mistaken for something else."""
    core = len(subject.operation.argument("mask").core)
    shape = mask_shape(arguments)
    batch = len(shape) - core
    broadcasts = subject.limits.broadcasting
    some = [size if rng.random() < 0.5 or (i < batch and not broadcasts) else 1 for i, size in enumerate(shape)]
    yield arguments, tuple(some[int(rng.integers(batch + 1)) if broadcasts else 0 :])
    sizes = arguments.binding.sizes
    if core < 2 or subject.limits.multiple_of > 1 or "m" not in sizes or not sizes["n"] or not sizes["m"]:
        return
    square = arguments.along("n", take(np.arange(sizes["m"]) % sizes["n"]))
    yield square, (*shape[:batch], 1, sizes["m"])
    yield square, (*shape[:batch], sizes["m"], 1)
    if not batch and broadcasts and subject.limits.max_batch_dims:
        few = arguments.along("n", keep(4))
        yield few, (few.size("n"), 1, sizes["m"])
    if batch and shape[batch - 1]:
        as_many = arguments.along("n", take(np.arange(shape[batch - 1]) % sizes["n"]))
        yield as_many, (*shape[:batch], 1, sizes["m"])


@proves(law.MASK_OF_ITS_OWN, once=True)
def mask_of_its_own(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Each element under its mask alone; as many elements as queries, so that one is not taken for the other."""
    judged = False
    for batch in ((3,), (2, 3)):
        if len(batch) > subject.limits.max_batch_dims:
            continue
        given = sample(subject, rng, batch, n=3, m=6, h=2)
        full = mask_shape(given)
        for shape in dict.fromkeys((full, (*batch, *(1,) * (len(full) - len(batch) - 1), full[-1]))):
            mask = rng.random(shape) < 0.6
            mask[..., 0] = True
            masked = given.with_(mask=mask)
            whole, budget = subject.call(masked), subject.budget(masked)
            for index in np.ndindex(*batch):
                alone = subject.call(element(masked, index))
                what = f"the result for element {index} of the batch, under its mask,"
                subject.matches(whole[index], wide(alone), 2 * budget[index], masked, what)
        judged = True
    return judged


@proves(law.ALL_TRUE)
def all_true(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Without a mask, and with one that allows everything."""
    none = arguments.with_(mask=None)
    full = arguments.with_(mask=np.ones(mask_shape(arguments), bool))
    budget = subject.budget(none)
    expected = wide(subject.call(none))
    subject.matches(subject.call(full), expected, 2 * budget, full, "under a mask that allows everything, the result")
    return True


@proves(law.MASK_PREFIX)
def mask_prefix(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """A corner of the mask."""
    n, m = arguments["n"], arguments["m"]
    corner = arguments.with_(n=int(rng.integers(n + 1)), m=int(rng.integers(m + 1)))
    expected = subject.call(arguments)[: corner["n"], : corner["m"]]
    subject.matches(subject.call(corner), expected, np.zeros(expected.shape), corner, "the smaller mask")
    return True


@proves(law.STRICT_MASK)
def strict_mask(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The two causal masks, and the diagonal between them."""
    inclusive = subject.call(arguments.with_(include_self=True))
    strict = subject.call(arguments.with_(include_self=False))
    diagonal = np.eye(arguments["n"], arguments["m"], dtype=bool)
    difference = inclusive.astype(np.int8) - strict.astype(np.int8)
    subject.holds(
        bool(np.array_equal(difference, diagonal.astype(np.int8))),
        "the masks with and without `include_self` do not differ by the diagonal",
        arguments,
        expected=diagonal,
        got=difference,
    )
    return True


@proves(law.LENGTH_COUNT)
def length_count(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Counts and order of every row."""
    mask = subject.call(arguments)
    counts = mask.sum(-1)
    lengths = arguments.array("lengths")
    subject.holds(
        bool(np.array_equal(counts, lengths)), "a row does not allow as many keys as its length", arguments,
        expected=lengths, got=counts,
    )  # fmt: skip
    falling = bool((mask[..., :-1] >= mask[..., 1:]).all())
    subject.holds(falling, "a key is allowed behind one that is not", arguments, got=mask)
    return True


@proves(law.LENGTH_RANGE)
def length_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Lengths of −1 and m + 1."""
    lengths = arguments.array("lengths")
    if not lengths.size:
        return False
    outside: Any = lengths.copy()
    outside.reshape(-1)[int(rng.integers(lengths.size))] = int(rng.choice([-1, arguments["m"] + 1]))
    broken = arguments.with_(lengths=outside)
    result = subject.outcome(subject.converted(broken))
    if isinstance(result, Raised):
        return True
    raise Violation(
        "a length outside 0..m was accepted, expected an exception", reason="accepted", arguments=broken, got=result
    )
