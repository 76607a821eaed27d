"""Evaluation of one operator by ONNX Runtime or by onnx's reference evaluator."""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from attnspec.backends.bases.numpy import NDArray, NumPyBackend

OPSETS = {"LinearAttention": 27}
"""Operator sets of ONNX that have an operator which older ones lack."""


@cache
def session(model: bytes) -> Any:
    """Return ONNX Runtime's session of a model, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # 4 logs fatal errors only; others are raised
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def flat(x: NDArray, batch: tuple[int, ...], *core: int) -> NDArray:
    """Return x with one flattened batch dimension before the `core` sizes."""
    return np.broadcast_to(x, (*batch, *core)).reshape(prod(batch), *core)


class Operators(NumPyBackend):
    """A backend whose operations evaluate operators of ONNX."""

    load: Callable[[bytes], Any]

    def run(self, operator: str, inputs: list[NDArray | None], outputs: int, **attributes: Any) -> Any:
        """Evaluate one operator; None omits an input or attribute; results have the first input's dtype."""
        opset = 25 if attributes.get("left_window_size") is not None else OPSETS.get(operator, 24)
        arrays = {f"x{i}": np.ascontiguousarray(x) for i, x in enumerate(inputs) if x is not None}
        kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in arrays.items()}
        input_infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
        output_infos = [helper.make_tensor_value_info(f"y{i}", kinds["x0"], None) for i in range(outputs)]
        names = [f"x{i}" if f"x{i}" in arrays else "" for i in range(len(inputs))]
        node = helper.make_node(operator, names, [x.name for x in output_infos], **attributes)
        graph = helper.make_graph([node], operator, input_infos, output_infos)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=12)
        return self.load(model.SerializeToString()).run(None, arrays)
