"""ONNX Runtime on the CPU, unmodified, as a backend."""

from collections.abc import Sequence
from functools import lru_cache

import onnxruntime

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx.attention import Attention
from attnspec.backends.onnx.models import Call
from attnspec.backends.onnx.recurrent import Recurrent
from attnspec.spec import Limits, Semantics


@lru_cache(maxsize=None)
def _session(call: Call) -> onnxruntime.InferenceSession:
    """A session for a kind of call, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised
    return onnxruntime.InferenceSession(
        call.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


class OnnxRuntime(Attention, Recurrent):
    """ONNX Runtime as it is."""

    name = "onnx-runtime"
    limits = Limits(
        dtypes=("float64", "float32", "float16"),
        dtypes_by_operation=dict.fromkeys(("gru", "lstm", "bidirectional_gru"), ("float32", "float16")),
    )
    semantics = Semantics(masked_nonfinite="propagates", no_keys="error")
    precision = {"scaled_dot_product_attention": {"float16": "eager-float16"}}  # noqa: RUF012 - a declaration

    def evaluate(self, call: Call, given: dict[str, NDArray]) -> Sequence[NDArray]:
        """The results of a session."""
        found: Sequence[NDArray] = _session(call).run(None, given)
        return found


backend = OnnxRuntime()
