"""Mutants that are wrong in one mode, in other threads, or for large cotangents.

Each class overrides methods of ``Library``, the correct backend. Each law in ``breaks`` must detect the defect alone.
``prepare`` converts the arguments, ``finish`` converts the result and ``vjp`` is the backend's call for gradients.
``vars(self)`` holds what one backend remembers between calls.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, at, changed, key, mask_of, query, sizes, without_last
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import bind
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.recurrent import GRU, LSTM
from attnspec.spec.scoring import DotScores
from attnspec.spec.seq2seq import BahdanauContext
from attnspec.spec.transformer import EncoderLayer

TILE = 64
"""Number of queries in a tile."""


class ModeAware(Library):
    """A library that knows whether its mode is active."""

    mode = ""

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """The mode ``mode``; ``active`` is True inside it."""
        return {self.mode: self._activate}

    @contextmanager
    def _activate(self) -> Iterator[None]:
        vars(self)["is_active"] = True
        yield
        vars(self)["is_active"] = False

    @property
    def active(self) -> bool:
        """True while the mode is active."""
        return bool(vars(self).get("is_active"))


class LargerInMode(ModeAware):
    """A library with float results too large by ``factor`` in its mode."""

    factor = 1.1

    def finish(self, operation: Operation, result: Any, arguments: Arguments) -> Any:
        """Multiply by ``factor`` inside the mode."""
        fresh = super().finish(operation, result, arguments)
        if not self.active:
            return fresh
        return map_tree(fresh, lambda _, x: x * x.dtype.type(self.factor) if is_float(x) else x)


@mutant(
    "results 10 % too large without gradients",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("training.same-in-every-mode",),
    source="pytorch/pytorch#106668: eval() and eval() with no_grad() take different kernels",
)
class WithoutGradients(LargerInMode):
    """Results are 10 % too large while gradients are switched off."""

    mode = "no_grad"


@mutant(
    "results 10 % too large under autocast",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtype="bfloat16",
    breaks=("training.same-in-every-mode",),
    source="pytorch/pytorch#107084: the mode decides which calls take the fast path",
)
class UnderAutocast(LargerInMode):
    """Under autocast to the dtype of the inputs, results are 10 % too large."""

    mode = "autocast"


class _Settings(threading.local):
    """Factor of the results: 1.1 in threads that do not set another."""

    scale = 1.1


@mutant(
    "results 10 % too large in other threads",
    operations=(ScaledDotProductAttention, LSTM, Softmax),
    breaks=("training.same-in-every-mode",),
    source="settings in a threading.local that are set once, at import",
)
class SettingsOfOneThread(Library):
    """Results are 10 % too large in threads that did not create the backend."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
        self.settings = _Settings()
        self.settings.scale = 1.0

    def finish(self, operation: Operation, result: Any, arguments: Arguments) -> Any:
        """Multiply the result by the thread's scale."""
        fresh, scale = super().finish(operation, result, arguments), self.settings.scale
        return map_tree(fresh, lambda _, x: x * x.dtype.type(scale) if is_float(x) else x)


# Fast paths that ignore masks, flags or lengths, or keep old keys -----------------------------------------------------


class ReplacingInMode(ModeAware):
    """A library that replaces arguments in its mode."""

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Replacements of arguments by path."""
        return {}

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Replace the arguments inside the mode."""
        changed_arguments = changed(arguments, self.replacements(operation, arguments)) if self.active else arguments
        return super().prepare(operation, changed_arguments)


class _Maskless(ReplacingInMode):
    """A library that ignores the mask in its mode."""

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the mask of the keys."""
        return {operation.mask.path: None} if operation.mask else {}


@mutant(
    "mask forgotten in inference",
    operations=(ScaledDotProductAttention, BahdanauContext, EncoderLayer),
    breaks=("training.same-in-every-mode",),
    source="pytorch/pytorch#106668: a fast path of inference that treats masks differently",
)
class MaskForgotten(_Maskless):
    """In inference mode, the mask is ignored."""

    mode = "inference"


@mutant(
    "mask forgotten under autocast",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("training.same-in-every-mode",),
    source="pytorch/pytorch#107084: the mode decides which calls take the fast path",
)
class MaskForgottenUnderAutocast(_Maskless):
    """Under autocast, the mask is ignored."""

    mode = "autocast"


@mutant(
    "causal flag forgotten without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.same-in-every-mode",),
    source="a fast path of inference that was written for decoding one query at a time",
)
class CausalForgotten(ReplacingInMode):
    """Without gradients, the causal flag is ignored."""

    mode = "no_grad"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the causal flag."""
        return {operation.flag: False} if operation.flag else {}


@mutant(
    "last of 64 or more keys lost in decoding without gradients",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("training.same-in-every-mode",),
    source="split keys of a decoding kernel whose remainder is left out",
)
class LastLostInDecoding(ReplacingInMode):
    """Without gradients, a single query ignores the last of 64 or more keys."""

    mode = "no_grad"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the last key, its value and its column of the mask."""
        queries, keys, *_ = sizes(operation, arguments)
        if queries != 1 or keys < 64:
            return {}
        return without_last(operation, arguments)


@mutant(
    "keys cached by their address without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.same-in-every-mode",),
    source="a cache of prepared keys that is used in inference, where nothing is thought to change",
)
class KeysCachedInInference(ReplacingInMode):
    """Without gradients, keys are replaced by the first keys seen at their address and layout."""

    mode = "no_grad"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Keys first seen at this address and layout."""
        first_keys: dict[Any, Any] = vars(self).setdefault("first_keys", {})
        path = key(operation)
        x = at(arguments, path)
        layout = (path, x.__array_interface__["data"][0], x.shape, x.strides, x.dtype)
        return {path: first_keys.setdefault(layout, x.copy())}


@mutant(
    "causal flag forgotten beyond 64 queries without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.same-in-every-mode",),
    source="a kernel for the prefill of inference, whose tiles on the diagonal are computed whole",
)
class CausalForgottenInPrefill(ReplacingInMode):
    """Without gradients, the causal flag is ignored for more than 64 queries."""

    mode = "no_grad"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the causal flag for more than 64 queries."""
        return {operation.flag: False} if operation.flag and sizes(operation, arguments)[0] > TILE else {}


@mutant(
    "rows of a mask repeat beyond 64 without gradients",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("training.same-in-every-mode",),
    source="a tile of the mask that is loaded once, in the kernel for the prefill of inference",
)
class MaskOfOneTile(ReplacingInMode):
    """Without gradients, queries from the 65th on repeat the mask rows of the first 64."""

    mode = "no_grad"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Repeat the first rows of a mask with a row per query."""
        mask, n = mask_of(operation, arguments), sizes(operation, arguments)[0]
        if operation.mask is None or mask is None or not mask.shape[-2] == n > TILE:
            return {}
        return {operation.mask.path: mask[..., np.arange(n) % TILE, :]}


@mutant(
    "length of the first sequence for all without gradients",
    operations=(GRU, LSTM),
    breaks=("training.same-in-every-mode",),
    source="sequences packed by the first length, in the kernel of inference for many steps",
)
class FirstLengthForAll(ReplacingInMode):
    """Without gradients, sequences of more than 8 steps all have the length of the first."""

    mode = "no_grad"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Repeat the first length."""
        changes = {}
        for path, size in operation.lengths.items():
            lengths = at(arguments, path)
            if lengths is not None and lengths.size and bind(operation, arguments).sizes[size] > 8:
                changes[path] = np.full_like(lengths, lengths.flat[0])
        return changes


@mutant(
    "mask forgotten in inference if all inputs are one array",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("attention.same-array-passed-twice",),
    source="pytorch/pytorch#106668: a fast path of inference, for queries that are the keys and the values",
)
class MaskForgottenForOneArray(ReplacingInMode):
    """In inference mode, the mask is ignored if queries, keys and values are one array."""

    mode = "inference"

    def replacements(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the mask if queries, keys and values are one array."""
        first = at(arguments, query(operation))
        same_array = all(at(arguments, leaf.path) is first for leaf in operation.attended)
        return {operation.mask.path: None} if same_array and operation.mask else {}


# Large cotangents -----------------------------------------------------------------------------------------------------


@mutant(
    "cotangents clipped at ±1,000",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.linear-in-cotangent",),
    source="gradient clipping inside an operation, against the factors of loss scaling",
)
class ClippedAtThousand(Library):
    """Cotangents are clipped to ±10³."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> dict[str, Any]:
        """Clip the cotangent, then differentiate."""
        clipped = map_tree(
            cotangent, lambda _, c: None if c is None else np.clip(c, c.dtype.type(-1e3), c.dtype.type(1e3))
        )
        return super().vjp(operation, arguments, clipped)
