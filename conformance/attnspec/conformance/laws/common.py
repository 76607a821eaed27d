"""What several checks share: who may attend to what, inputs of one's own, and how far averages may lie off."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.inputs.corners import HEAD_DIMS, LENGTH_NAMES
from attnspec.conformance.inputs.dtypes import SMALLEST_NORMAL
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.subject import INFORMATIVE, Subject
from attnspec.reference.budget import WIDTH, Judged
from attnspec.spec.contract.operation import Argument, Kind


def key_axis_size(arguments: Arguments) -> int:
    """The number of keys: m, or n where a sequence attends to itself."""
    sizes = arguments.binding.sizes
    return sizes["m"] if "m" in sizes else sizes["n"]


def live_rows(subject: Subject, arguments: Arguments) -> Numbers:
    """Rows with an attendable key, shape (…, 1) to broadcast against the result."""
    aligned = subject.semantics.causal_alignment == "bottom-right"
    return np.expand_dims(attendable(arguments, bottom_right=aligned).any(-1), -1)


def aligned(subject: Subject, arguments: Arguments) -> bool:
    """Whether position i of the queries is position i of the keys under the backend's causal mask."""
    return subject.semantics.causal_alignment == "top-left" or (
        "m" not in arguments.binding.sizes or arguments.size("n") == arguments.size("m")
    )


def plain(arguments: Arguments) -> Arguments:
    """The same without a causal mask."""
    return arguments.with_(causal=False) if arguments.operation.takes("causal") else arguments


def causal(arguments: Arguments) -> Arguments:
    """The same under a causal mask."""
    return arguments if arguments.causal else arguments.with_(causal=True)


def sample(subject: Subject, rng: np.random.Generator, batch: tuple[int, ...] = (), /, **sizes: int) -> Arguments:
    """Normal inputs of these sizes, the others 4, within the backend's limits, unmasked."""
    operation = subject.operation
    fitted = {name: fitting(subject, name, sizes.get(name, 4)) for name in operation.size_names}
    example = Example(
        fitted, batch if len(batch) <= subject.limits.max_batch_dims else (), seed=int(rng.integers(2**32))
    )
    return example.arguments(operation, data_dtype(subject))


def fitting(subject: Subject, name: str, size: int) -> int:
    """The nearest size that the backend's limits allow."""
    limits = subject.limits
    if name in LENGTH_NAMES:
        size = -(-size // limits.multiple_of) * limits.multiple_of
        return size if limits.max_length is None else min(size, limits.max_length)
    if name in HEAD_DIMS and limits.head_sizes is not None:
        return min(limits.head_sizes, key=lambda s: (abs(s - size), s))
    return size


def data_dtype(subject: Subject) -> str:
    """The dtype of inputs; operations without float inputs count in doubles."""
    return subject.dtype if subject.operation.float_arguments else "float64"


def wide(x: Numbers) -> Numbers:
    """Doubles; long doubles stay."""
    return x if x.dtype == np.longdouble else x.astype(np.float64)


def average_tolerance(subject: Subject, arguments: Arguments, values: Numbers) -> float:
    """How far a rounded average of values may lie outside their hull, whatever the errors of its weights."""
    p = subject.precision
    keys = key_axis_size(arguments)
    top = float(np.max(np.abs(values.astype(np.float64)), initial=0.0))
    units = (2 * keys + 8) * p.accumulation + 2 * p.weights + 2 * p.operand + p.output
    units += WIDTH * subject.oracle(arguments).level
    return units * top + 8 * (keys * p.weights_smallest * max(top, 1.0) + p.output_smallest)


def pooled_name(arguments: Arguments) -> str:
    """The argument that is averaged."""
    return next(name for name in ("value", "annotations", "x") if name in arguments)


def coarse(x: Any, reach: float = 4.0, step: float = 0.25) -> Numbers:
    """Numbers on a coarse grid, so that sums of a few of them are exact in every dtype."""
    return np.clip(np.round(np.asarray(x).astype(np.float64) / step) * step, -reach, reach)


def normal_like(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments | None:
    """The same shapes and mask with normal inputs, whose rounding errors are independent; None for too few rows."""
    if np.prod(arguments.binding.shape(subject.operation.result.dims)) < 8:
        return None
    changes = {}
    for a in subject.operation.arguments:
        if a.kind is Kind.FLOAT:
            shape = arguments.array(a.name).shape
            scale = 1 / np.sqrt(max(shape[-1], 1)) if a.name.startswith("w") else 1.0
            changes[a.name] = subject.exact(scale * rng.standard_normal(shape))
    return arguments.with_(**changes)


def smallest_normal(subject: Subject) -> float:
    """The smallest normal number of the tested dtype."""
    return SMALLEST_NORMAL[subject.dtype]


def filtered_error(subject: Subject, arguments: Arguments, direction: Numbers, *, rows_err_alike: bool = False) -> bool:
    """The matched filter: no error along a direction, weighted over all elements, beyond what roundings leave.

    ε̂ = Σ w (got − o) g / Σ w g² with w = 1/σ² has the standard error se = (Σ g²/σ²)^−½ where errors are independent,
    as they are for normal inputs. ``rows_err_alike`` takes the errors within a row as equal instead, but for the
    rounding of the result: all columns share the errors of their weights. The limit is 12 se, and 4 units of
    accumulation for what errs alike everywhere. Returns whether anything was judged; where the class rounds the
    operands of products, nothing is, since all rows share the error of a key.
    """
    weights = subject.operation.takes("w") or subject.operation.takes("w_q")
    if subject.precision.inputs or (subject.precision.operand and weights):
        return False
    oracle = subject.oracle(arguments)
    got = wide(subject.call(arguments))
    sigma = oracle.sigma
    top = float(np.max(np.abs(oracle.value), initial=0.0))
    with np.errstate(all="ignore"):
        usable = (oracle.budget <= INFORMATIVE * top) & (oracle.budget > 0) & np.isfinite(got) & np.isfinite(direction)
        scaled = np.where(usable, direction / np.where(usable, sigma, 1.0), 0.0).astype(np.float64)
        information = float((scaled**2).sum())
        if information == 0.0:
            return False
        error = np.where(usable, (got - oracle.value) / np.where(usable, sigma, 1.0), 0.0).astype(np.float64)
    estimate = float((error * scaled).sum()) / information
    limit = 12 * _spread(subject, oracle, scaled, rows_err_alike) / information + 4 * subject.precision.accumulation
    subject.ratio = max(subject.ratio, abs(estimate) / limit)
    subject.holds(
        abs(estimate) <= limit,
        f"a relative error of {estimate:.3g} shows over all elements together, roundings leave at most {limit:.3g}",
        arguments,
        expected=np.float64(0.0),
        got=np.float64(estimate),
        budget=np.float64(limit),
    )
    return True


def _spread(subject: Subject, oracle: Judged, scaled: Numbers, rows_err_alike: bool) -> float:
    """√Var[Σ w e g]: independent errors add in quadrature, equal ones as they are."""
    if not rows_err_alike:
        return float(np.sqrt((scaled**2).sum()))
    sigma = oracle.sigma
    with np.errstate(all="ignore"):
        rounding = 0.6 * subject.precision.output * np.abs(oracle.value).astype(np.float64) / sigma
        rounding = np.where(scaled != 0, np.minimum(rounding, 1.0), 0.0)
    alone, together = scaled * rounding, np.abs(scaled) * np.sqrt(1 - rounding**2)
    return float(np.sqrt((alone**2).sum() + (together.sum(-1) ** 2).sum()))


def random_like(x: Numbers, rng: np.random.Generator, subject: Subject) -> Numbers:
    """Other normal numbers of the same shape, exact in the tested dtype."""
    return subject.exact(rng.standard_normal(x.shape))


def boolean(arguments: Arguments) -> bool:
    """Whether the result is a mask."""
    return arguments.operation.result.kind is Kind.BOOL


def broadcast_batches(*arrays: Any, core: int) -> list[Numbers]:
    """The arrays with their batches made equal; the last ``core`` dimensions stay."""
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - core] for a in arrays))
    return [np.broadcast_to(a, (*batch, *a.shape[a.ndim - core :])) for a in arrays]


def element(arguments: Arguments, index: tuple[int, ...]) -> Arguments:
    """The arguments for one element of the batch."""
    return arguments.with_(**{a.name: _element(arguments[a.name], len(a.core), index) for a in batched(arguments)})


def batched(arguments: Arguments) -> list[Argument]:
    """The arguments that are arrays with a batch."""
    return [a for a in arguments.operation.arguments if a.batched and isinstance(arguments[a.name], np.ndarray)]


def _element(x: Numbers, core: int, index: tuple[int, ...]) -> Numbers:
    depth = x.ndim - core
    own = index[len(index) - depth :]
    return np.asarray(x[tuple(0 if x.shape[i] == 1 else j for i, j in enumerate(own))])
