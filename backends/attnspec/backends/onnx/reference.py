"""The reference evaluator of the package onnx, unmodified, as a backend."""

from collections.abc import Sequence
from functools import lru_cache

from onnx.reference import ReferenceEvaluator

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx.attention import Attention
from attnspec.backends.onnx.models import Call
from attnspec.backends.onnx.recurrent import Recurrent
from attnspec.spec import Semantics


@lru_cache(maxsize=None)
def _evaluator(call: Call) -> ReferenceEvaluator:
    """An evaluator for a kind of call."""
    return ReferenceEvaluator(call.model())


class OnnxReference(Attention, Recurrent):
    """The reference evaluator as it is."""

    name = "onnx-reference"
    semantics = Semantics(masked_nonfinite="propagates", no_keys="error")

    def evaluate(self, call: Call, given: dict[str, NDArray]) -> Sequence[NDArray]:
        """The results of an evaluator."""
        found: Sequence[NDArray] = _evaluator(call).run(None, given)
        return found


backend = OnnxReference()
