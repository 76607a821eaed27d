"""Mutants that are wrong in one mode of a framework, in other threads, or for large cotangents."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import at, changed, key, mask_of, query, sizes, without_last
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import bind
from attnspec.spec.contract.tree import mapped
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.recurrent import GRU, LSTM
from attnspec.spec.scoring import DotScores
from attnspec.spec.seq2seq import BahdanauContext
from attnspec.spec.transformer import EncoderLayer

TILE = 64
"""Number of queries in a tile."""


class InMode(Library):
    """A backend that knows if its mode is active."""

    mode = ""

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """The backend's mode, which sets ``inside`` while active."""
        return {self.mode: self._entered}

    @contextmanager
    def _entered(self) -> Iterator[None]:
        vars(self)["entered"] = True
        yield
        vars(self)["entered"] = False

    @property
    def inside(self) -> bool:
        """True while the mode is active."""
        return bool(vars(self).get("entered"))


class _OtherIn(InMode):
    """In its mode, float results are a tenth too large."""

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Multiply by 1.1 inside the mode."""
        fresh = super().finished(operation, result, arguments)
        if not self.inside:
            return fresh
        return mapped(fresh, lambda _, x: x * x.dtype.type(1.1) if is_float(x) else x)


@mutant(
    "another kernel where no gradients are recorded",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("training.modes",),
    source="pytorch/pytorch#106668: eval() and eval() with no_grad() take different kernels",
)
class WithoutGradients(_OtherIn):
    """Without gradients, results are a tenth too large."""

    mode = "no_grad"


@mutant(
    "another kernel under autocast",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtype="bfloat16",
    breaks=("training.modes",),
    source="pytorch/pytorch#107084: what takes the fast path depends on the mode",
)
class UnderAutocast(_OtherIn):
    """Under autocast to the dtype of the inputs, results are a tenth too large."""

    mode = "autocast"


class _Settings(threading.local):
    """Settings of a backend that only the thread that set them sees."""

    scale = 1.1


@mutant(
    "settings that only the main thread has",
    operations=(ScaledDotProductAttention, LSTM, Softmax),
    breaks=("training.modes",),
    source="settings that are kept in a threading.local, as contexts of frameworks are, and are set at the import",
)
class SettingsOfOneThread(Library):
    """In threads other than the one that made the backend, results are a tenth too large."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.settings = _Settings()
        self.settings.scale = 1.0

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Multiply the result by the thread's scale."""
        fresh, scale = super().finished(operation, result, arguments), self.settings.scale
        return mapped(fresh, lambda _, x: x * x.dtype.type(scale) if is_float(x) else x)


# Fast paths that ignore masks, flags or lengths, or keep old keys -----------------------------------------------------


class ForgettingIn(InMode):
    """In its mode, some arguments are replaced."""

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Replacements of arguments by path."""
        return {}

    def prepared(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the arguments inside the mode."""
        given = changed(arguments, self.forgotten(operation, arguments)) if self.inside else arguments
        return super().prepared(operation, given)


class _Maskless(ForgettingIn):
    """In its mode, the mask is ignored."""

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the mask of the keys."""
        return {operation.mask.path: None} if operation.mask else {}


@mutant(
    "mask forgotten in inference",
    operations=(ScaledDotProductAttention, BahdanauContext, EncoderLayer),
    breaks=("training.modes",),
    source="pytorch/pytorch#106668: a fast path of inference with a treatment of masks of its own",
)
class MaskForgotten(_Maskless):
    """In inference mode, the mask is ignored."""

    mode = "inference"


@mutant(
    "mask forgotten under autocast",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("training.modes",),
    source="pytorch/pytorch#107084: what takes the fast path depends on the mode",
)
class MaskForgottenUnderAutocast(_Maskless):
    """Under autocast, the mask is ignored."""

    mode = "autocast"


@mutant(
    "causal flag forgotten without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.modes",),
    source="a fast path of inference that was written for decoding one query at a time",
)
class CausalForgotten(ForgettingIn):
    """Without gradients, the causal flag is ignored."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the causal flag."""
        return {operation.flag: False} if operation.flag else {}


@mutant(
    "last of many keys lost in decoding without gradients",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("training.modes",),
    source="split keys of a decoding kernel whose remainder is left out",
)
class LastLostInDecoding(ForgettingIn):
    """Without gradients, one query with at least 64 keys does not attend to the last one."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the last key, its value and its column of the mask."""
        queries, keys, *_ = sizes(operation, arguments)
        if queries != 1 or keys < 64:
            return {}
        return without_last(operation, arguments)


@mutant(
    "keys kept by their address without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.modes",),
    source="a cache of prepared keys that is used in inference, where nothing is thought to change",
)
class KeptInInference(ForgettingIn):
    """Without gradients, keys at a known address are replaced by those of the first call there."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keys first seen at this address."""
        kept: dict[Any, Any] = vars(self).setdefault("kept", {})
        path = key(operation)
        x = at(arguments, path)
        place = (path, x.__array_interface__["data"][0], x.shape, x.strides, x.dtype)
        return {path: kept.setdefault(place, x.copy())}


@mutant(
    "causal prompts of more than 64 tokens without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.modes",),
    source="a kernel for the prefill of inference, whose tiles on the diagonal are computed whole",
)
class CausalForgottenInPrefill(ForgettingIn):
    """Without gradients, the causal flag is ignored for more than 64 queries."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the causal flag for more than 64 queries."""
        return {operation.flag: False} if operation.flag and sizes(operation, arguments)[0] > TILE else {}


@mutant(
    "rows of a mask repeat beyond 64 without gradients",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("training.modes",),
    source="a tile of the mask that is loaded once, in the kernel for the prefill of inference",
)
class MaskOfOneTile(ForgettingIn):
    """Without gradients, queries from the 65th on repeat the mask rows of the first 64."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Repeat the first rows of a mask with a row per query."""
        mask, n = mask_of(operation, arguments), sizes(operation, arguments)[0]
        if operation.mask is None or mask is None or not mask.shape[-2] == n > TILE:
            return {}
        return {operation.mask.path: mask[..., np.arange(n) % TILE, :]}


@mutant(
    "length of the first sequence for all without gradients",
    operations=(GRU, LSTM),
    breaks=("training.modes",),
    source="sequences packed by the first length, in the kernel of inference for many steps",
)
class FirstLengthForAll(ForgettingIn):
    """Without gradients, sequences of more than 8 steps all have the length of the first."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Repeat the first length."""
        found = {}
        for path, size in operation.lengths.items():
            lengths = at(arguments, path)
            if lengths is not None and lengths.size and bind(operation, arguments).sizes[size] > 8:
                found[path] = np.full_like(lengths, lengths.flat[0])
        return found


@mutant(
    "mask forgotten for one array in inference",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("attention.shared-inputs",),
    source="pytorch/pytorch#106668: a fast path of inference, for queries that are the keys and the values",
)
class MaskForgottenForOneArray(ForgettingIn):
    """In inference mode, the mask is ignored if queries, keys and values are one array."""

    mode = "inference"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the mask if one array has all roles."""
        first = at(arguments, query(operation))
        one = all(at(arguments, leaf.path) is first for leaf in operation.attended)
        return {operation.mask.path: None} if one and operation.mask else {}


# Large cotangents -----------------------------------------------------------------------------------------------------


@mutant(
    "cotangents clipped at a thousand",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.cotangents",),
    source="gradient clipping inside an operation, against the factors of loss scaling",
)
class ClippedAtThousand(Library):
    """Cotangents are clipped to ±10³."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        """Clip the cotangent, then differentiate."""
        clipped = mapped(
            cotangent, lambda _, c: None if c is None else np.clip(c, c.dtype.type(-1e3), c.dtype.type(1e3))
        )
        return super().vjp(operation, arguments, clipped)
