"""Expected results under the declared choices for NaN, infinities, and rows without attendable keys."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.harness.parts import Part
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.judging.left_open import averages_unspecified_keys, rows_of_declared_choice
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.semantics import QUESTIONS

KEPT_MEMORY = 2**25 - 2**16
"""Size of a block that makes the C library keep freed memory; larger blocks have no such effect."""


class Expected(NamedTuple):
    """Expected numbers, budgets, and a mask of required NaN (None: nowhere). Any other NaN leaves its element open."""

    value: Numbers
    budget: Numbers
    nan: Numbers | None = None

    def requiring_nan(self, places: Numbers) -> "Expected":
        """Return these expectations, with NaN required at more places."""
        return self._replace(nan=places if self.nan is None else self.nan | places)


@contextmanager
def on_all_cores() -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a ``map`` on one thread per core.

    Without threadpoolctl, which the extra ``check`` installs, it takes about twice as long.
    """
    # The C library of Linux gives freed memory back once it is twice as large as the largest block freed so far. To map
    # every array anew would then take half of the time. Freeing one block that is never written to prevents that.
    np.empty(KEPT_MEMORY, np.uint8)
    with one_blas_thread(), ThreadPoolExecutor(os.cpu_count()) as threads:
        yield threads.map


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which the BLAS has one thread."""
    # Its threads would compete with ours.
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits


def expected(subject: Subject, part: Part) -> dict[str, Expected]:
    """Return the expected results by path, including the effects of NaN and infinite arguments.

    Rows without attendable keys follow the declared ``fully_masked``, calls without keys ``no_keys``. A NaN that a row
    attends to makes that row NaN, unless ``attendable_nan`` (or ``nan_queries``, for NaN in queries) declares another
    choice. Results that depend on infinities are left open, except weights of a row of −∞. So are results of masked NaN
    or infinities if ``masked_nonfinite`` is ``propagates``.
    """
    arguments = part.arguments
    expectations = {path: Expected(x.value, x.budget) for path, x in subject.oracles(arguments).items()}
    if arguments.operation.mask is not None:
        expectations = _with_empty_rows(subject, arguments, expectations)
    float_arrays = [x for _, x in arguments.floats]
    if all(np.isfinite(x).all() for x in float_arrays):
        return expectations
    if not any(np.isinf(x).any() for x in float_arrays) and _propagates(subject, arguments):
        exact = subject.oracle_values(arguments)
        expectations = {path: x.requiring_nan(np.isnan(exact[path])) for path, x in expectations.items()}
    if subject.semantics.masked_nonfinite == "propagates" and arguments.operation.masks:
        unmasked = subject.oracle_values(arguments.unordered().without_masks())
        expectations = {path: _with_open_results(x, ~np.isfinite(unmasked[path])) for path, x in expectations.items()}
    if QUESTIONS["minus_infinity"].concerns(arguments.operation):
        expectations = _with_low_rows(subject, arguments, expectations)
    return expectations


def _propagates(subject: Subject, arguments: Arguments) -> bool:
    """Return True if, by the declared choices, every attended NaN makes its row NaN."""
    hides_nan_queries = subject.semantics.nan_queries == "hidden" and any(
        np.isnan(arguments.array(leaf.path)).any() for leaf in subject.operation.queries
    )
    return subject.semantics.attendable_nan == "propagates" and not hides_nan_queries


def _with_empty_rows(subject: Subject, arguments: Arguments, results: Mapping[str, Expected]) -> dict[str, Expected]:
    """Set rows without attendable keys to the declared NaN or average.

    Other choices leave them open. If there are no keys at all, ``no_keys`` decides for the leading result.
    """
    operation, semantics = arguments.operation, subject.semantics
    choice = semantics.fully_masked if arguments.keys_count else semantics.no_keys
    if choice not in ("nan", "uniform"):
        return dict(results)
    leaves = operation.outputs if arguments.keys_count else (operation.leading,)
    undefined = {path: np.zeros(x.value.shape, bool) for path, x in results.items()}
    undefined |= {
        leaf.path: rows_of_declared_choice(leaf, undefined[leaf.path].shape, arguments, semantics) for leaf in leaves
    }
    if choice == "nan":
        return {path: x.requiring_nan(undefined[path]) for path, x in results.items()}
    # Under a causal mask, no declaration tells which keys an average includes.
    known = arguments.unordered() is arguments and not averages_unspecified_keys(arguments, semantics)
    if not known or not any(rows.any() for rows in undefined.values()):
        return dict(results)
    averages = subject.normative_oracles(arguments)
    return {
        path: Expected(
            np.where(undefined[path], averages[path].value, x.value),
            np.where(undefined[path], averages[path].budget, x.budget),
        )
        for path, x in results.items()
    }


def _with_low_rows(subject: Subject, arguments: Arguments, results: Mapping[str, Expected]) -> dict[str, Expected]:
    """Set rows of −∞ to the weights that ``minus_infinity`` declares."""
    operation, choice = arguments.operation, subject.semantics.minus_infinity
    path, (scores,) = operation.leading.path, operation.scores_scale_with
    allowed, x = attendable(arguments, semantics=subject.semantics), arguments.array(scores)
    low = allowed & ~np.any(allowed & (x != -np.inf), axis=-1, keepdims=True)
    right = results[path]
    if choice == "nan":
        return {**results, path: right._replace(value=np.where(low, np.nan, right.value)).requiring_nan(low)}
    # Equal weights are those of equal finite scores.
    weights = subject.oracles(arguments.replaced({scores: np.where(low, x.dtype.type(0), x)}))[path]
    value, budget = (weights.value, weights.budget) if choice == "uniform" else (0.0, 0.0)
    return {
        **results,
        path: right._replace(value=np.where(low, value, right.value), budget=np.where(low, budget, right.budget)),
    }


def _with_open_results(expected: Expected, is_open: Numbers) -> Expected:
    nan = None if expected.nan is None else expected.nan & ~is_open
    return Expected(np.where(is_open, np.nan, expected.value), np.where(is_open, np.inf, expected.budget), nan)
