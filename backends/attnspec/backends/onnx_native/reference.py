"""The reference evaluator of the package onnx, unmodified, as a backend.

What violates, in onnx 1.23.2: GRU and LSTM ignore sequence_lens. Every sequence has all steps, padding included.

Its products in half dtypes are NumPy's, for which there is no class of precision; they are not judged.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from onnx.reference import ReferenceEvaluator

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx_native.attention import Attention
from attnspec.backends.onnx_native.models import Call
from attnspec.backends.onnx_native.recurrent import Recurrent
from attnspec.spec import Semantics


@cache
def _evaluator(call: Call) -> ReferenceEvaluator:
    """An evaluator for a kind of call."""
    return ReferenceEvaluator(call.model())


class OnnxReference(Attention, Recurrent):
    """The reference evaluator as it is: what a mask hides propagates if it is not finite, no keys are an error."""

    name = "onnx-reference"
    semantics = Semantics(masked_nonfinite="propagates", no_keys="error")

    def evaluate(self, call: Call, given: dict[str, NDArray]) -> Sequence[NDArray]:
        """The results of an evaluator."""
        found: Any = _evaluator(call).run(None, given)
        return tuple(found)


backend = OnnxReference()
