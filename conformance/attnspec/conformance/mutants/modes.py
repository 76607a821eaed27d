"""Mutants that take another way in one mode of a framework, or by the size of a cotangent."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import mapped
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.scoring import DotScores


class _OtherIn(Library):
    """In its mode everything is a tenth larger."""

    mode = ""

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """A mode that is remembered."""
        return {self.mode: self._entered}

    @contextmanager
    def _entered(self) -> Iterator[None]:
        vars(self)["inside"] = True
        yield
        vars(self)["inside"] = False

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Ask for the mode."""
        fresh = super().finished(operation, result, arguments)
        if not vars(self).get("inside"):
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


@mutant(
    "cotangents clipped at a thousand",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.cotangent-scale",),
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
