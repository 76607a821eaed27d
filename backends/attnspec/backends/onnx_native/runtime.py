"""ONNX Runtime on the CPU, unmodified, as a backend.

What violates, in onnxruntime 1.32.0:

- Attention of doubles has the relative error of a float32 in its scale, as has ONNX's own definition of the operator by
  others, which takes 1/√d in float32 and probably stands in where there is no kernel.
- The final state of a GRU or an LSTM for a sequence of length 0 is 0, and not the initial state. ONNX does not say what
  it is (onnx/onnx#1674).

It refuses GRU and LSTM of doubles and everything in bfloat16, which limits leave out. Attention in float16 scales
queries and keys before their product, each rounded.
"""

from collections.abc import Sequence
from functools import cache

import onnxruntime

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx_native.attention import Attention
from attnspec.backends.onnx_native.models import Call
from attnspec.backends.onnx_native.recurrent import Recurrent
from attnspec.spec import Limits, Semantics


@cache
def _session(call: Call) -> onnxruntime.InferenceSession:
    """A session for a kind of call, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised
    return onnxruntime.InferenceSession(call.model().SerializeToString(), options, providers=["CPUExecutionProvider"])


class OnnxRuntime(Attention, Recurrent):
    """ONNX Runtime as it is: what a mask hides propagates if it is not finite, and no keys are an error."""

    name = "onnx-runtime"
    limits = Limits(
        dtypes=("float64", "float32", "float16"),
        dtypes_by_operation=dict.fromkeys(("gru", "lstm"), ("float32", "float16")),
    )
    semantics = Semantics(masked_nonfinite="propagates", no_keys="error")
    precision = {"scaled_dot_product_attention": {"float16": "prescaled-float16"}}  # noqa: RUF012 - a declaration

    def evaluate(self, call: Call, given: dict[str, NDArray]) -> Sequence[NDArray]:
        """The results of a session."""
        found: Sequence[NDArray] = _session(call).run(None, given)
        return found


backend = OnnxRuntime()
