"""Mutants with a backward pass that reads memory overwritten since the call.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``finish``
converts the result and ``pullback`` records a call and returns its backward pass. ``vars(self)`` holds what one backend
remembers between calls.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, Recorded, at, changed, key, query
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.tree import flatten, map_tree
from attnspec.spec.normalization import Softmax

SAVED = "tensors stored on the context without save_for_backward, which would detect later writes"


def _copy_arguments(arguments: Arguments, copied: Callable[[Any], bool]) -> dict[str, Any]:
    """The arguments, with copies of the arrays that satisfy ``copied``."""
    saved: dict[str, Any] = map_tree(
        dict(arguments), lambda _, x: x.copy() if isinstance(x, np.ndarray) and copied(x) else x
    )
    return saved


@mutant(
    "arguments kept by reference for the backward pass",
    replaces="pullback",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("training.later-writes-have-no-effect",),
    source=SAVED,
)
def arguments_by_reference(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """Float arguments are saved by reference: later writes to them change the gradients."""
    return _by_reference(correct, operation, arguments, paths)


def _by_reference(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    result, _ = Library.pullback(correct, operation, arguments, paths)
    saved = _copy_arguments(arguments, lambda x: not is_float(x))
    return result, lambda cotangent: _select(correct.vjp(operation, saved, cotangent), paths)


def _select(gradients: Mapping[str, Numbers], paths: Collection[str]) -> Gradients:
    return {path: gradients[path] for path in paths}


@mutant(
    "arguments of causal calls kept by reference for the backward pass",
    replaces="pullback",
    operations=(ScaledDotProductAttention,),
    breaks=("training.later-writes-have-no-effect",),
    source=SAVED,
    profile="full",
)
def arguments_of_causal_calls_by_reference(
    correct: Library, operation: str, arguments: Arguments, paths: Collection[str]
) -> Recorded:
    """Causal calls without a mask save float arguments by reference: later writes change the gradients."""
    o = OPERATIONS[operation]
    masked = any(arguments.get(leaf.path) is not None for leaf in o.masks.values())
    if masked or not arguments.get(o.flag or ""):
        return Library.pullback(correct, operation, arguments, paths)
    return _by_reference(correct, operation, arguments, paths)


@mutant(
    "mask kept by reference for the backward pass",
    replaces="pullback",
    operations=(ScaledDotProductAttention, Softmax, AdditiveAttention),
    breaks=("training.later-writes-have-no-effect",),
    source=SAVED,
)
def mask_by_reference(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """The mask is saved by reference: later writes to it change the gradients."""
    result, _ = Library.pullback(correct, operation, arguments, paths)
    saved = _copy_arguments(arguments, is_float)
    return result, lambda cotangent: _select(correct.vjp(operation, saved, cotangent), paths)


@mutant(
    "result kept by reference for the backward pass",
    replaces="pullback",
    operations=(Softmax,),
    breaks=("training.later-writes-have-no-effect",),
    source=SAVED,
)
def result_by_reference(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """The result y is saved by reference: later writes to it change the gradient y(c − Σ yc)."""
    y, backward = Library.pullback(correct, operation, arguments, paths)
    path = query(OPERATIONS[operation])
    if at(arguments, path).shape != y.shape:
        return y, backward

    def of_weights(cotangent: Any) -> Gradients:
        return {path: y * (cotangent - np.sum(y * cotangent, axis=-1, keepdims=True))}

    return y, of_weights


class _Workspaces(Library):
    """A library that saves keys of recorded calls in ``count`` buffers per shape in turn."""

    count = 1

    def workspace(self, operation: str, arguments: Arguments) -> Any:
        """Write the keys into the next buffer of these shapes and return its key."""
        shapes = tuple((path, np.shape(x)) for path, x in flatten(dict(arguments)).items())
        written: dict[Any, int] = vars(self).setdefault("written", {})
        written[shapes] = written.get(shapes, 0) + 1
        buffer = (operation, shapes, written[shapes] % self.count)
        vars(self).setdefault("buffers", {})[buffer] = at(arguments, key(OPERATIONS[operation])).copy()
        return buffer

    def pullback(self, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
        """Differentiate with the keys that the buffer holds at the backward pass."""
        result, _ = super().pullback(operation, arguments, paths)
        saved, buffer = _copy_arguments(arguments, lambda x: True), self.workspace(operation, arguments)

        def backward(cotangent: Any) -> Gradients:
            keys = vars(self)["buffers"][buffer]
            return _select(self.vjp(operation, changed(saved, {key(OPERATIONS[operation]): keys}), cotangent), paths)

        return result, backward


@mutant(
    "saved keys overwritten by the next recorded call",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.independent-of-other-passes",),
    source="a workspace for the backward pass that is allocated once for every shape",
)
class LastRecord(_Workspaces):
    """The backward pass uses the keys of the last recorded call of the same shapes."""


@mutant(
    "saved keys overwritten by the second next recorded call",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.independent-of-other-passes",),
    source="two workspaces in turn, so that one step may overlap with the next one",
)
class LastRecordButOne(_Workspaces):
    """The backward pass uses keys overwritten by the second later recorded call of equal shapes."""

    count = 2


@mutant(
    "saved keys overwritten by any later call",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.independent-of-other-passes",),
    source="a workspace that evaluation writes to as well, between forward and backward passes of training",
)
class LastCall(_Workspaces):
    """The backward pass uses keys of the last call of equal shapes, recorded or not."""

    def finish(self, operation: Operation, result: Any, arguments: Arguments) -> Any:
        """Write the keys into the buffer of these shapes."""
        self.workspace(operation.name, arguments)
        return super().finish(operation, result, arguments)
