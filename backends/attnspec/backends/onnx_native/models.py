"""Models of one operator, built for a kind of call, and the base of the backends that evaluate them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from attnspec.backends.bases.numpy import NDArray, NumPyBackend

OPSET = 24
"""The version of the operators: Attention of opset 24, GRU and LSTM of opset 22, which are still current there."""

IR_VERSION = 12
"""The version of the format that came with opset 24."""

NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}
"""ONNX's names of dtypes that are not NumPy's in capitals."""


@dataclass(frozen=True)
class Call:
    """A kind of call: an operator, the names and dtypes of its inputs, the names of its results, its attributes.

    An input that is not given has no dtype. Results have the dtype of the first input.
    """

    operator: str
    inputs: tuple[tuple[str, str | None], ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]

    def model(self) -> onnx.ModelProto:
        """The model: inputs and results of any shape, and one node."""
        dtypes = {name: dtype for name, dtype in self.inputs if dtype is not None}
        taken = [_described(name, dtype) for name, dtype in dtypes.items()]
        given = [_described(name, next(iter(dtypes.values()))) for name in self.outputs]
        names = [name if name in dtypes else "" for name, _ in self.inputs]
        node = helper.make_node(self.operator, names, self.outputs, **dict(self.attributes))
        graph = helper.make_graph([node], self.operator, taken, given)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _described(name: str, dtype: str) -> onnx.ValueInfoProto:
    """An array of any shape."""
    return helper.make_tensor_value_info(name, onnx.TensorProto.DataType.Value(NAMES.get(dtype, dtype.upper())), None)


class Evaluated(NumPyBackend):
    """Base of backends that evaluate models."""

    @abstractmethod
    def evaluate(self, call: Call, given: dict[str, NDArray]) -> Sequence[NDArray]:
        """The results of a kind of call on arrays, by name."""

    def run(
        self, operator: str, inputs: dict[str, NDArray | None], outputs: tuple[str, ...], **attributes: Any
    ) -> Sequence[NDArray]:
        """The results of one operator, with its inputs in its order; None is one that is not given."""
        kinds = tuple((name, None if x is None else x.dtype.name) for name, x in inputs.items())
        given = {name: np.ascontiguousarray(x) for name, x in inputs.items() if x is not None}
        return self.evaluate(Call(operator, kinds, outputs, tuple(attributes.items())), given)
