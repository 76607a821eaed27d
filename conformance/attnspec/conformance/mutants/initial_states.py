"""Mutants of initial and final states, variances, and changes of mode.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``prepare`` converts the arguments, ``finish`` converts the result and ``call`` runs all steps
of a call. ``vars(self)`` holds what one backend remembers between calls. ``value_of(x)`` is x without its record of
gradients, so that no gradient flows through it.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.modes import ModeAware, ReplacingInMode
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, Recorded, arrays, at, changed, query
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import flatten, map_tree
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.recurrent import GRU, LSTM, RNN, StackedGRU, StackedLSTM
from attnspec.spec.transformer import EncoderLayer, LayerNorm, LayerNormParameters

# States ---------------------------------------------------------------------------------------------------------------


def _states(operation: Operation, arguments: Arguments) -> Gradients:
    """Initial states of a call, by path."""
    return {leaf.path: x for leaf, x in arrays(operation, arguments) if operation.role(leaf) is Role.STATE}


@mutant(
    "zero state replaced by the last final state",
    operations=(RNN, GRU, LSTM),
    breaks=("recurrent.resumes-from-state",),
    source="a layer that is stateful: without an initial state it goes on from the last one",
)
class LastStateForZeros(Library):
    """Initial states of 0 are replaced by the previous call's final states of equal shape."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Replace states of 0 by the last final state, and save the new one."""
        arguments = self.bind_arguments(operation, args, kwargs)
        states = _states(operation, arguments)
        last_states: dict[str, Numbers] = vars(self).setdefault("last_states", {})
        fits = all(path in last_states and last_states[path].shape == x.shape for path, x in states.items())
        if states and fits and not any(np.any(x) for x in states.values()):
            arguments = changed(arguments, {path: last_states[path].astype(x.dtype) for path, x in states.items()})
        result = super().call(operation, **arguments)
        finals = list(flatten(dict(enumerate(result))).values())[1:] if isinstance(result, tuple) else []
        last_states.update(zip(states, finals, strict=False))
        return result


def _final_states_in(dtype: str) -> type[Library]:
    class FinalStates(Library):
        def finish(self, operation: Operation, result: Any, arguments: Arguments) -> Any:
            fresh = super().finish(operation, result, arguments)
            states, *finals = fresh
            return (states, *(map_tree(x, lambda _, y: y.astype(dtype)) for x in finals))

    return FinalStates


@mutant(
    "final state in single precision",
    operations=(GRU, LSTM, StackedLSTM),
    dtype="bfloat16",
    breaks=("operation.dtype",),
    source="a state that is carried in the accumulator's dtype from step to step",
)
class FinalStateInFloat32(_final_states_in("float32")):  # type: ignore[misc]
    """The final state is float32, the other states have the dtype of the inputs."""


@mutant(
    "final state of a sequence in float16",
    operations=(RNN, StackedGRU),
    breaks=("operation.dtype",),
    source="a cache of states in half precision",
)
class FinalStateInFloat16(_final_states_in("float16")):  # type: ignore[misc]
    """The final state is rounded to float16 and returned as float16."""


@mutant(
    "unbatched state doubled",
    replaces="broadcast_state",
    operations=(GRU, LSTM),
    breaks=("operation.broadcast-equals-repeat",),
    source="an initial state without a batch, that is reduced where it should broadcast",
)
def added_states(correct: Formulas, x: Numbers, initial: tuple[Numbers, ...], lengths: Numbers) -> tuple[Numbers, ...]:
    """An initial state without batch dimensions is doubled if the inputs have some."""
    doubled = tuple(s + s if value_of(s).ndim == 1 and value_of(x).ndim > 2 else s for s in initial)
    return Formulas.broadcast_state(correct, x, doubled, lengths)


# Variances ------------------------------------------------------------------------------------------------------------


def _one_pass(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers], dtype: str, epsilon: float) -> Numbers:
    mean = np.mean(x, axis=-1, keepdims=True)
    squares = np.mean(rounded(value_of(x) * value_of(x), dtype), axis=-1, keepdims=True)
    variance = np.maximum(squares - rounded(value_of(mean) * value_of(mean), dtype), 0).astype(value_of(x).dtype)
    return p.gain * (x - mean) / np.sqrt(variance + value_of(x).dtype.type(correct.epsilon(epsilon))) + p.bias


@mutant(
    "variance as the mean of squares less the squared mean",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("transformer.layer-norm-ignores-shift",),
    differentiable=False,
    source="openvinotoolkit/openvino#36587: one pass over the rows, which cancels for means beyond 100 spreads",
)
def one_pass(
    correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """The variance is computed as E[x²] − E[x]², which cancels for large means."""
    return _one_pass(correct, x, parameters, "float32", epsilon)


@mutant(
    "one-pass variance of rows in float16",
    replaces="layer_norm",
    operations=(LayerNorm,),
    dtype="float16",
    breaks=("transformer.layer-norm-ignores-shift",),
    differentiable=False,
    source="microsoft/onnxruntime#28442: squares that are summed in the dtype of the rows",
)
def one_pass_in_half(
    correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """Squares are rounded to float16, where numbers beyond 65,504 are infinite."""
    return _one_pass(correct, x, parameters, "float16", epsilon)


@mutant(
    "centred squares in float16",
    replaces="variance",
    operations=(LayerNorm,),
    dtype="float16",
    breaks=("transformer.layer-norm-moments",),
    profile="full",
    differentiable=False,
    source="neuroneural/brainchop-cli#56: every square in float16, before a sum in float32",
)
def squares_in_half(correct: Formulas, centred: Numbers) -> Numbers:
    """Squares are float16: a feature 256 away from the mean makes the variance infinite."""
    squares = rounded(centred * centred, "float16")
    variance: Numbers = np.mean(squares, axis=-1, keepdims=True)
    return variance


# Modes ----------------------------------------------------------------------------------------------------------------


@mutant(
    "gradients 0 for shapes first called without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.independent-of-other-passes",),
    source="pytorch/pytorch#100977: a compiled graph of inference is used again where autograd should run",
)
class GraphOfInference(ModeAware):
    """Gradients are 0 for shapes that were called without gradients before."""

    mode = "no_grad"

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Record the shapes of calls in the mode."""
        if self.active:
            vars(self).setdefault("graphs", set()).add(_shapes(self.bind_arguments(operation, args, kwargs)))
        return super().call(operation, *args, **kwargs)

    def pullback(self, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
        """Return gradients of 0 for recorded shapes."""
        result, backward = super().pullback(operation, arguments, paths)
        if _shapes(arguments) not in vars(self).get("graphs", ()):
            return result, backward
        return result, lambda cotangent: {path: 0 * x for path, x in backward(cotangent).items()}


def _shapes(arguments: Arguments) -> Any:
    arrays_by_path = flatten(dict(arguments))
    return tuple((path, x.shape, x.dtype.name) for path, x in arrays_by_path.items() if isinstance(x, np.ndarray))


class _Casting(ModeAware):
    """A backend for bfloat16 and float32 with autocast to bfloat16."""

    mode = "autocast"

    def __init__(self, name: str, formulas: Formulas | None = None, **more: Any) -> None:
        super().__init__(name, formulas, **more)
        self.limits = Limits(dtypes=("bfloat16", "float32"))

    def modes(self, dtype: str, *, device: str) -> dict[str, Any]:
        """Autocast for bfloat16, no mode for float32."""
        return super().modes(dtype, device=device) if dtype == "bfloat16" else {}


def _needs_cast(operation: Operation, arguments: Arguments) -> bool:
    """True if autocast would convert any input to 16 bits."""
    return any(is_float(x) and x.dtype.itemsize > 2 for _, x in arrays(operation, arguments))


@mutant(
    "mask forgotten under autocast of float32",
    operations=(ScaledDotProductAttention, AdditiveAttention, EncoderLayer),
    dtype="bfloat16",
    breaks=("training.same-in-every-mode",),
    source="a cast of the inputs to the dtype of autocast, after which a mask no longer fits them",
)
class MaskForgottenInCast(_Casting, ReplacingInMode):
    """Under autocast the mask is ignored if inputs are float32; bfloat16 inputs are right."""

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the mask if any input is cast."""
        return {operation.mask.path: None} if operation.mask and _needs_cast(operation, arguments) else {}


# Numbers and batches --------------------------------------------------------------------------------------------------


@mutant(
    "queries multiplied by an overflowing reciprocal",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("attention.extreme-magnitudes",),
    source="scaling before a product, against overflow, by a reciprocal",
)
def scaled_queries(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """All-subnormal float32 queries are multiplied by 1/max |q|, which may overflow, and by max |q|."""
    path = query(operation)
    x = at(arguments, path)
    finite = np.where(np.isfinite(x), np.abs(x), x.dtype.type(0))
    largest = np.max(finite, initial=0)
    with np.errstate(all="ignore"):
        scaled = x * (1 / largest) * largest if 0 < largest < np.finfo(np.float32).tiny and x.dtype == np.float32 else x
    return Library.prepare(correct, operation, changed(arguments, {path: scaled}))


@mutant(
    "first mask used for all if only masks have a batch",
    replaces="prepare",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("operation.broadcast-equals-repeat",),
    source="a batch that is counted by the queries alone",
)
def mask_of_the_first(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """If only the mask has a batch, its first element is used for all."""
    own = operation.mask
    mask = None if own is None else at(arguments, own.path)
    batched = [x.ndim > len(leaf.core) for leaf, x in arrays(operation, arguments) if leaf.batched and leaf != own]
    if own is None or mask is None or any(batched) or mask.ndim <= len(own.core):
        return Library.prepare(correct, operation, arguments)
    first = np.broadcast_to(mask[:1], mask.shape).copy()
    return Library.prepare(correct, operation, changed(arguments, {own.path: first}))
