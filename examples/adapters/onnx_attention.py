"""Adapters to ONNX's Attention, for the reference evaluator and ONNX Runtime, without declarations."""

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
    """Make a model with one Attention node of opset 24."""
    infos = [helper.make_tensor_value_info(name, KINDS[x.dtype], x.shape) for name, x in inputs.items()]
    node = helper.make_node("Attention", list(inputs), ["Y"], is_causal=int(causal))
    graph = helper.make_graph([node], "attention", infos, [helper.make_tensor_value_info("Y", KINDS[dtype], None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


class Attention(NumPyBackend):
    """Base of both adapters, which calls ONNX with one head: (batch, 1, n, d)."""

    def evaluate(self, model: Any, inputs: Mapping[str, NDArray]) -> NDArray:
        """Run a model and return its result."""
        raise NotImplementedError

    def scaled_dot_product_attention(
        self, query: NDArray, key: NDArray, value: NDArray, *, mask: NDArray | None = None, causal: bool = False
    ) -> NDArray:
        """Attention with all batch dimensions flattened to one."""
        arrays = {"Q": query, "K": key, "V": value}
        n, m = query.shape[-2], key.shape[-2]
        batch = np.broadcast_shapes(*(x.shape[:-2] for x in (*arrays.values(), *([] if mask is None else [mask]))))
        if mask is not None:
            arrays["attn_mask"] = np.broadcast_to(mask, (*mask.shape[:-2], n, m))
        inputs = {
            name: np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(prod(batch), 1, *x.shape[-2:])
            for name, x in arrays.items()
        }
        return self.evaluate(model(inputs, query.dtype, causal), inputs).reshape(*batch, n, value.shape[-1])


class OnnxReference(Attention):
    """Attention of ONNX's reference evaluator."""

    name = "onnx-reference"

    def evaluate(self, model: Any, inputs: Mapping[str, NDArray]) -> NDArray:
        """Run a model and return its result."""
        (output,) = ReferenceEvaluator(model).run(None, dict(inputs))
        return np.asarray(output)


class OnnxRuntime(Attention):
    """Attention of ONNX Runtime."""

    name = "onnx-runtime"

    def evaluate(self, model: Any, inputs: Mapping[str, NDArray]) -> NDArray:
        """Run a model and return its result."""
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (output,) = session.run(None, dict(inputs))
        return np.asarray(output)
