"""Mutants that take another way in one mode of a framework, or by the size of a cotangent."""

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
"""Queries of a tile."""


class InMode(Library):
    """Knows whether it is called in its mode."""

    mode = ""

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """A mode that is remembered."""
        return {self.mode: self._entered}

    @contextmanager
    def _entered(self) -> Iterator[None]:
        vars(self)["entered"] = True
        yield
        vars(self)["entered"] = False

    @property
    def inside(self) -> bool:
        """Whether the mode has been entered."""
        return bool(vars(self).get("entered"))


class _OtherIn(InMode):
    """In its mode everything is a tenth larger."""

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Ask for the mode."""
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
    """Without gradients results are a tenth larger."""

    mode = "no_grad"


@mutant(
    "another kernel under autocast",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtype="bfloat16",
    breaks=("training.modes",),
    source="pytorch/pytorch#107084: what takes the fast path depends on the mode",
)
class UnderAutocast(_OtherIn):
    """Under autocast to the dtype itself results are a tenth larger."""

    mode = "autocast"


class _Settings(threading.local):
    """Settings of a backend, which other threads than the one that set them do not see."""

    scale = 1.1


@mutant(
    "settings that only the main thread has",
    operations=(ScaledDotProductAttention, LSTM, Softmax),
    breaks=("training.modes",),
    source="settings that are kept in a threading.local, as contexts of frameworks are, and are set at the import",
)
class SettingsOfOneThread(Library):
    """Other threads scale by a default, which is a tenth too large."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.settings = _Settings()
        self.settings.scale = 1.0

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Scale."""
        fresh, scale = super().finished(operation, result, arguments), self.settings.scale
        return mapped(fresh, lambda _, x: x * x.dtype.type(scale) if is_float(x) else x)


# Fast paths that forget what restricts attention, or keep what they were given ----------------------------------------


class ForgettingIn(InMode):
    """In its mode the formula is given something else."""

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the formula is given instead, by path."""
        return {}

    def prepared(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for the mode."""
        given = changed(arguments, self.forgotten(operation, arguments)) if self.inside else arguments
        return super().prepared(operation, given)


class _Maskless(ForgettingIn):
    """In its mode nothing is masked."""

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The mask of the keys."""
        return {operation.mask.path: None} if operation.mask else {}


@mutant(
    "mask forgotten in inference",
    operations=(ScaledDotProductAttention, BahdanauContext, EncoderLayer),
    breaks=("training.modes",),
    source="pytorch/pytorch#106668: a fast path of inference with a treatment of masks of its own",
)
class MaskForgotten(_Maskless):
    """The fast path has no mask."""

    mode = "inference"


@mutant(
    "mask forgotten under autocast",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("training.modes",),
    source="pytorch/pytorch#107084: what takes the fast path depends on the mode",
)
class MaskForgottenUnderAutocast(_Maskless):
    """The kernel for 16 bits has no mask."""

    mode = "autocast"


@mutant(
    "causal flag forgotten without gradients",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.modes",),
    source="a fast path of inference that was written for decoding one query at a time",
)
class CausalForgotten(ForgettingIn):
    """The fast path attends to the future."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The flag."""
        return {operation.flag: False} if operation.flag else {}


@mutant(
    "last of many keys lost in decoding without gradients",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("training.modes",),
    source="split keys of a decoding kernel whose remainder is left out",
)
class LastLostInDecoding(ForgettingIn):
    """Of one query with at least 64 keys."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The last key, its value and its column of the mask."""
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
    """Keys at a known address are taken for those of the call before."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What was at this address at first."""
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
    """More than 64 queries attend to the future."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The flag."""
        return {operation.flag: False} if operation.flag and sizes(operation, arguments)[0] > TILE else {}


@mutant(
    "rows of a mask repeat beyond 64 without gradients",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("training.modes",),
    source="a tile of the mask that is loaded once, in the kernel for the prefill of inference",
)
class MaskOfOneTile(ForgettingIn):
    """Of more than 64 queries."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The rows of a mask that has one for each query."""
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
    """Of more than 8 steps."""

    mode = "no_grad"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The lengths, of which the first is repeated."""
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
    """Where queries, keys and values are one array."""

    mode = "inference"

    def forgotten(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The mask of the keys."""
        first = at(arguments, query(operation))
        one = all(at(arguments, leaf.path) is first for leaf in operation.attended)
        return {operation.mask.path: None} if one and operation.mask else {}


# Cotangents of a certain size -----------------------------------------------------------------------------------------


@mutant(
    "cotangents clipped at a thousand",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.cotangents",),
    source="gradient clipping inside an operation, against the factors of loss scaling",
)
class ClippedAtThousand(Library):
    """Nothing above 10³ is passed on."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        """Clip."""
        clipped = mapped(
            cotangent, lambda _, c: None if c is None else np.clip(c, c.dtype.type(-1e3), c.dtype.type(1e3))
        )
        return super().vjp(operation, arguments, clipped)
