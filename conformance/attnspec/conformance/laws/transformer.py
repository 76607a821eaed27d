"""Checks of the laws of transformers."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, take
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import wide
from attnspec.conformance.laws.registry import checks
from attnspec.spec.contract.tree import flatten
from attnspec.spec.laws import transformer as law
from attnspec.spec.transformer import EncoderLayerParameters


def _parameters(arguments: Arguments) -> tuple[EncoderLayerParameters[np.ndarray], dict[int, str]]:
    """The record of all weights, and their paths by ``id``."""
    (found,) = (x for x in arguments.values_by_name.values() if isinstance(x, EncoderLayerParameters))
    return found, {id(x): path for path, x in flatten(arguments.values_by_name).items()}


def _with(arguments: Arguments, changes: list[tuple[np.ndarray, float]]) -> Arguments:
    """A copy in which weights of the record are filled with a number."""
    _, paths = _parameters(arguments)
    return arguments.replaced({paths[id(x)]: np.full_like(x, number) for x, number in changes})


def _with_norm(arguments: Arguments, *, default: bool) -> Arguments:
    """A copy with the norm that is the default, or with the other one."""
    (option,) = arguments.operation.options
    usual = arguments.operation.defaults[option.path]
    (choice,) = (c for c in option.choices if (c == usual) is default)
    return arguments.replaced({option.path: choice})


@checks(law.ZERO_SUBLAYERS)
def zero_sublayers(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the last weights of both sublayers to 0: the result is x."""
    if not all(subject.limits.has(feature) for feature in subject.operation.features):
        return False
    p, _ = _parameters(arguments)
    zeros = _with(arguments, [(p.attention.w_o, 0), (p.feed_forward.w_2, 0), (p.feed_forward.b_2, 0)])
    given = _with_norm(zeros, default=False)
    (rows,) = subject.operation.queries
    got = subject.call(given)
    expected = np.broadcast_to(wide(given.array(rows.path)), got.shape)
    subject.matches(got, expected, subject.budget(given), given, "with sublayers that give 0, the result")
    return True


@checks(law.NORMALIZED)
def normalized(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The mean and the mean square of every row."""
    p, _ = _parameters(arguments)
    norm = p.feed_forward_norm
    given = _with_norm(_with(arguments, [(norm.gain, 1), (norm.bias, 0)]), default=True)
    got, budget = wide(subject.call(given)), subject.budget(given)
    if not got.size:
        return False
    budget = np.where(np.isfinite(budget), budget, 0)
    means, slack = got.mean(-1), budget.mean(-1) + 2.0**-50
    subject.matches(np.append(means, 1.0), np.append(np.zeros(means.shape), 1.0), np.append(slack, 1.0), given,
                    "the mean of a row")  # fmt: skip
    squares, more = (got**2).mean(-1), (2 * np.abs(got) * budget + budget**2).mean(-1)
    excess = np.maximum(squares - 1, 0)
    subject.holds(
        bool((excess <= more + 2.0**-50).all()),
        f"the mean square of a row is {squares.max():.9g}",
        given,
        expected=np.minimum(squares, 1),
        got=squares,
    )
    return True


@checks(law.POSITION_WISE)
def position_wise(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare one position alone with the sequence, with w_v = 0, so that attention adds nothing."""
    size, n = subject.operation.asked, arguments.queries or 0
    if n < 2 or size is None or subject.limits.multiple_of > 1:
        return False
    p, _ = _parameters(arguments)
    given = _with(arguments, [(p.attention.w_v, 0)])
    i = int(rng.integers(n))
    alone = given.along(size, take([i]))
    expected, budget = (np.take(x, [i], axis=-2) for x in (wide(subject.call(given)), subject.budget(given)))
    subject.matches(subject.call(alone), expected, 2 * budget, alone, f"position {i} alone: the result")
    return True
