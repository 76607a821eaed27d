"""Variants of backward passes and of the memory of results and gradients."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import flatten, map_tree
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.scoring import DotScores


@variant("gradients in transposed memory", operations=(DotScores, ScaledDotProductAttention, MultiHeadAttention))
class Transposed(Library):
    """Gradients are in Fortran order."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Return the gradients in Fortran order."""
        return {path: np.asfortranarray(g) for path, g in super().vjp(operation, arguments, cotangent).items()}


@variant("read-only results and gradients", operations=(Softmax, ScaledDotProductAttention, AttentionPooling))
class ReadOnly(Library):
    """Results and gradients are read-only, like arrays of JAX."""

    def finish(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Return a read-only result."""
        fresh: Numbers = super().finish(operation, result, arguments)
        fresh.flags.writeable = False
        return fresh

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Return read-only gradients."""
        gradients = super().vjp(operation, arguments, cotangent)
        for g in gradients.values():
            g.flags.writeable = False
        return gradients


@variant("contiguous cotangent, subnormal numbers flushed", operations=(DotScores, SelfAttention))
class Flushed(Library):
    """The cotangent is copied; its subnormal elements and those of the gradients are 0."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Flush subnormal numbers of the cotangent and the gradients to 0."""
        copy = map_tree(cotangent, lambda _, c: None if c is None else _flushed(np.ascontiguousarray(c)))
        return {path: _flushed(g) for path, g in super().vjp(operation, arguments, copy).items()}


def _flushed(x: Numbers) -> Numbers:
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, x.dtype.type(0), x)


@variant("result recomputed by the backward pass", operations=(ScaledDotProductAttention, AdditiveAttention))
class Recomputed(Library):
    """Only copies of the arguments are saved, and only the wanted gradients are returned."""

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], paths: Collection[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Numbers]]]:
        """The result, and a backward pass that recomputes it from saved arguments."""
        saved = map_tree(dict(arguments), lambda _, x: x.copy() if isinstance(x, np.ndarray) else x)
        result, _ = super().pullback(operation, arguments, paths)

        def backward(cotangent: Any) -> dict[str, Numbers]:
            gradients = self.vjp(operation, saved, cotangent)
            return {path: g for path, g in gradients.items() if path in paths}

        return result, backward


@variant("gradients of batch elements computed one by one", operations=(DotScores, ScaledDotProductAttention))
class OneByOne(Library):
    """Gradients are computed per batch element and summed in reverse order if arguments broadcast."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Sum the gradients of the batch elements from the last to the first."""
        if not isinstance(cotangent, np.ndarray) or cotangent.ndim != 3 or cotangent.shape[0] < 2:
            return super().vjp(operation, arguments, cotangent)
        total: dict[str, Numbers] = {}
        for i in reversed(range(cotangent.shape[0])):
            alone = np.zeros_like(cotangent)
            alone[i] = cotangent[i]
            for path, g in super().vjp(operation, arguments, alone).items():
                total[path] = total[path] + g if path in total else g
        arrays = flatten(dict(arguments))
        return {path: g.astype(arrays[path].dtype) for path, g in total.items()}
