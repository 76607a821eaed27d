"""First adapters to ONNX's Attention, by the reference evaluator and by ONNX Runtime."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from attnspec.backends.bases.numpy import NDArray, NumPyBackend

KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}
KINDS |= {np.dtype(bool): TensorProto.BOOL}


def model(inputs: Mapping[str, NDArray], dtype: np.dtype[Any], causal: bool) -> Any:
    """A model of one node of opset 24."""
    given = [helper.make_tensor_value_info(name, KINDS[x.dtype], x.shape) for name, x in inputs.items()]
    node = helper.make_node("Attention", list(inputs), ["Y"], is_causal=int(causal))
    graph = helper.make_graph([node], "attention", given, [helper.make_tensor_value_info("Y", KINDS[dtype], None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


class Attention(NumPyBackend):
    """One head: ONNX takes (batch, heads, n, d)."""

    def evaluate(self, model: Any, inputs: Mapping[str, NDArray]) -> NDArray:
        """The result of a model."""
        raise NotImplementedError

    def scaled_dot_product_attention(
        self, query: NDArray, key: NDArray, value: NDArray, *, mask: NDArray | None = None, causal: bool = False
    ) -> NDArray:
        """Attention with all dimensions of the batch as one."""
        given = {"Q": query, "K": key, "V": value}
        n, m = query.shape[-2], key.shape[-2]
        batch = np.broadcast_shapes(*(x.shape[:-2] for x in (*given.values(), *([] if mask is None else [mask]))))
        if mask is not None:
            given["attn_mask"] = np.broadcast_to(mask, (*mask.shape[:-2], n, m))
        inputs = {
            name: np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(prod(batch), 1, *x.shape[-2:])
            for name, x in given.items()
        }
        return self.evaluate(model(inputs, query.dtype, causal), inputs).reshape(*batch, n, value.shape[-1])


class OnnxReference(Attention):
    """By the reference evaluator."""

    name = "onnx-reference"

    def evaluate(self, model: Any, inputs: Mapping[str, NDArray]) -> NDArray:
        """The result of a model."""
        (found,) = ReferenceEvaluator(model).run(None, dict(inputs))
        return np.asarray(found)


class OnnxRuntime(Attention):
    """By ONNX Runtime."""

    name = "onnx-runtime"

    def evaluate(self, model: Any, inputs: Mapping[str, NDArray]) -> NDArray:
        """The result of a model."""
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, dict(inputs))
        return np.asarray(found)
