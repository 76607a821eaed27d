"""Backend around the correct formulas: checks, conversion of arguments and results, gradients."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.inputs.dtypes import half_to_single, is_float, numpy_dtype
from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.formulas import Formulas
from attnspec.conformance.mutants.correct.tape import Tape, gradients
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.contract.semantics import Semantics
from attnspec.spec.contract.shapes import bind
from attnspec.spec.contract.tree import flatten, map_tree


class Library:
    """A backend that provides every operation for which ``formulas`` has a method.

    Half-precision inputs are computed in float32 and rounded once, at the end.
    """

    def __init__(
        self,
        name: str,
        formulas: Formulas | None = None,
        *,
        dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16", "float16"),
        semantics: Mapping[str, Any] | Semantics | None = None,
        precision: Mapping[str, Any] | None = None,
        operand_formats: Mapping[str, tuple[Any, ...]] | None = None,
        differentiable: bool = True,
    ) -> None:
        self.name = name
        self.formulas = formulas or Formulas()
        self.limits = Limits(dtypes=dtypes, operand_formats=operand_formats or {})
        self.semantics = semantics
        self.precision = precision
        if not differentiable:
            self.vjp = None  # type: ignore[assignment,method-assign]
            self.pullback = None  # type: ignore[assignment,method-assign]
        for operation in OPERATIONS.values():
            if hasattr(self.formulas, operation.name):
                setattr(self, operation.name, partial(self.call, operation))

    # Steps of every call -----------------------------------------------------------------------------------------

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments, convert them, compute the operation and convert the result back."""
        arguments = self.bind_arguments(operation, args, kwargs)
        self.check(operation, arguments)
        with np.errstate(all="ignore"):
            result = self.compute(operation, self.prepare(operation, arguments))
        return self.finish(operation, result, arguments)

    def bind_arguments(self, operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Passed arguments by name."""
        return dict(operation.signature.bind(*args, **kwargs).arguments)

    def check(self, operation: Operation, arguments: Mapping[str, Any]) -> None:
        """Raise for a shape that violates the Protocol."""
        bind(operation, arguments)

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments in at least float32: quantised operands dequantised, half-precision arrays converted."""

        def prepared(x: Any) -> Any:
            return self.dequantize(x) if isinstance(x, Quantized) else half_to_single(x)

        return {name: map_tree(tree, lambda _, x: prepared(x)) for name, tree in arguments.items()}

    def dequantize(self, operand: Quantized) -> Numbers:
        """Codes times scales in float32."""
        shape = operand.codes.shape
        values = self.in_blocks(operand.codes.astype(np.float32), operand.scales.shape)
        scaled: Numbers = values * self.expand_scales(self.scale_values(operand)).astype(np.float32)
        return scaled.reshape(shape)

    def scale_values(self, operand: Quantized) -> Numbers:
        """Scales in float32, times the global one."""
        scales = operand.scales.astype(np.float32)
        return scales if operand.global_scale is None else scales * operand.global_scale

    def in_blocks(self, values: Numbers, counts: tuple[int, ...]) -> Numbers:
        """Every axis split in two: blocks, and places in a block."""
        sizes = zip(values.shape, counts, strict=True)
        return values.reshape([n for size, count in sizes for n in (count, size // count)])

    def expand_scales(self, scales: Numbers) -> Numbers:
        """Scales with an axis of size 1 for the places in a block."""
        return scales.reshape([n for count in scales.shape for n in (count, 1)])

    def compute(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        """Apply the formula of an operation to prepared arguments."""
        names = [name for name in operation.call.names if name in arguments]
        positional = [arguments[name] for name in names if name not in operation.keyword_only]
        keyword = {name: arguments[name] for name in names if name in operation.keyword_only}
        return getattr(self.formulas, operation.name)(*positional, **keyword)

    def finish(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Copy the result to the dtype of the inputs; booleans and integers stay."""
        dtype = self.result_dtype(operation, arguments)
        return map_tree(result, lambda _, x: np.array(x, dtype=dtype if is_float(np.asarray(x)) else None))

    def result_dtype(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        """The dtype of the float inputs; without float inputs, ``formulas.default``."""
        inputs = [x for x in flatten(dict(arguments)).values() if is_float(x) or isinstance(x, Quantized)]
        dtypes = (numpy_dtype(x.dtype) if isinstance(x, Quantized) else x.dtype for x in inputs)
        return next(dtypes, self.formulas.default)

    # Conversion and gradients ------------------------------------------------------------------------------------

    def from_numpy(self, array: np.ndarray[Any, Any], *, device: str) -> np.ndarray[Any, Any]:
        """A copy with the same strides, in memory of its own."""
        if device != "cpu":
            raise ValueError(f"device: expected cpu; got {device!r}")
        return strided_copy(array)

    def to_numpy(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the array itself; ``TypeError`` if it is no array."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"result: expected an array; got {type(array).__name__}")
        return array

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Gradients of ⟨cotangent, operation(**arguments)⟩ by path, by reverse mode through the formulas.

        The cotangent is a tree like the result, with None for arrays that do not contribute.
        """
        described = OPERATIONS[operation]
        self.check(described, arguments)
        weights = map_tree(cotangent, lambda _, x: half_to_single(x))
        with np.errstate(all="ignore"):
            gradients_by_path = self.differentiate(described, self.prepare(described, arguments), weights)
        arrays = flatten(dict(arguments))
        return {path: np.array(g, dtype=arrays[path].dtype) for path, g in gradients_by_path.items()}

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], paths: Collection[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Numbers]]]:
        """The result, and a backward pass for ``paths`` from copies of the arguments."""
        result = getattr(self, operation)(**arguments)
        saved = map_tree(dict(arguments), lambda _, x: strided_copy(x) if isinstance(x, np.ndarray) else x)

        def backward(cotangent: Any) -> dict[str, Numbers]:
            gradients_by_path = self.vjp(operation, saved, cotangent)
            return {path: gradients_by_path[path] for path in paths}

        return result, backward

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """One mode, "inference", without effect."""
        return {"inference": nullcontext}

    def differentiate(self, operation: Operation, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Gradients with respect to every prepared float array, by path."""
        inputs = {path: Tape(x) for path, x in flatten(dict(arguments)).items() if is_float(x)}
        taped = map_tree(dict(arguments), lambda path, x: inputs.get(path, x))
        return gradients(self.compute(operation, taped), inputs, cotangent)


def rounded(x: Any, dtype: str) -> Any:
    """Round to a lower dtype and convert back."""
    return x.astype(numpy_dtype(dtype)).astype(x.dtype)


def strided_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A writable copy with the same strides, except that negative ones become positive."""
    itemsize = array.dtype.itemsize
    unknown_to_numpy = itemsize == 1 and is_float(array)  # ``as_strided`` has no floats of 8 bits
    if array.size == 0 or unknown_to_numpy or any(stride % itemsize for stride in array.strides):
        return array.copy()
    strides = tuple(map(abs, array.strides))
    last = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    copy = as_strided(np.zeros(last // itemsize + 1, array.dtype), array.shape, strides)
    copy[...] = array
    return copy
