"""Limits of a backend: the dtypes, devices, sizes, batches and optional features that it supports."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from attnspec.spec.contract.declared import declared_as
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.quantized import operand_format

Formats: TypeAlias = str | tuple[tuple[str, str], ...]
"""Formats of one kind of call: one for all operands, or pairs of an argument and its format."""

LEAST = {"multiple_of": 1, "max_batch_dims": 0, "max_length": 1, "min_length": 0, "min_batch": 0}
"""Smallest allowed value of each integer limit."""

NEW_SHAPES = ("cheap", "expensive")
"""Costs of the first call with new shapes."""

OPTIONAL = ("head_sizes", "features", "gradients")
"""Limits that may be None, meaning no restriction."""


@dataclass(frozen=True)
class Limits:
    """Limits of a backend. Inputs are generated within them, and reports print them.

    - dtypes: float dtypes to judge. devices: devices it runs on.
    - head_sizes: supported sizes of feature dimensions, None for all.
    - min_length, max_length: smallest and largest n and m. multiple_of: n and m are multiples of this.
    - max_batch_dims: largest number of batch dimensions. min_batch: smallest size of one.
    - broadcasting: True if batch dimensions of different inputs broadcast.
    - features: supported optional parts of operations, such as ``scale`` or ``norm=pre``, None for all.
    - always: choices that every call makes, such as ``norm=pre``: the other choice of that argument is not supported.
    - dtypes_by_operation: mapping with the dtypes of operations that support only some of ``dtypes``.
    - divided_heads: True if all widths of an attention must be equal and divided by its heads, d/heads features each.
    - mask, causal: True if optional masks, or the causal flag, are supported.
    - contiguous_only: True if arrays must be contiguous.
    - gradients: operations that ``vjp`` supports, None for all.
    - operand_formats: mapping from operations to the formats of quantised operands that they take. Each is the name of
      one format for all operands, or a mapping from arguments to formats; arguments that it leaves out are floats.
    - new_shapes: ``expensive`` if the first call with new shapes takes seconds, as where kernels are compiled for them.
    """

    dtypes: tuple[str, ...] = ("float64", "float32")
    devices: tuple[str, ...] = ("cpu",)
    head_sizes: tuple[int, ...] | None = None
    multiple_of: int = 1
    max_length: int | None = None
    max_batch_dims: int = 3
    broadcasting: bool = True
    features: tuple[str, ...] | None = None
    divided_heads: bool = False
    dtypes_by_operation: Mapping[str, tuple[str, ...]] | tuple[tuple[str, tuple[str, ...]], ...] = ()
    min_length: int = 0
    min_batch: int = 0
    mask: bool = True
    causal: bool = True
    contiguous_only: bool = False
    gradients: tuple[str, ...] | None = None
    operand_formats: Mapping[str, tuple[Any, ...]] | tuple[tuple[str, tuple[Formats, ...]], ...] = ()
    new_shapes: str = "cheap"
    always: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for f in ("dtypes", "devices", "head_sizes", "features", "gradients", "always"):
            value = getattr(self, f)
            if isinstance(value, list):
                object.__setattr__(self, f, tuple(value))
            elif not isinstance(value, tuple) and not (f in OPTIONAL and value is None):
                raise ValueError(f"limits {f}: expected a tuple or a list; got {value!r}")
        for f in ("divided_heads", "mask", "causal", "contiguous_only"):
            if not isinstance(getattr(self, f), bool):
                raise ValueError(f"limits {f}: expected True or False; got {getattr(self, f)!r}")
        if self.new_shapes not in NEW_SHAPES:
            raise ValueError(f"limits new_shapes: expected {' or '.join(NEW_SHAPES)}; got {self.new_shapes!r}")
        for dtype in self.dtypes:
            if dtype not in DEFAULTS:
                raise ValueError(f"limits dtypes: expected some of {', '.join(DEFAULTS)}; got {dtype!r}")
        if not self.dtypes or not self.devices:
            raise ValueError("limits: expected at least one dtype and one device; got none")
        for f in ("dtypes", "devices"):
            object.__setattr__(self, f, tuple(dict.fromkeys(getattr(self, f))))
        object.__setattr__(self, "dtypes_by_operation", _by_operation(self.dtypes_by_operation, self.dtypes))
        object.__setattr__(self, "operand_formats", _formats(self.operand_formats))
        for f, least in LEAST.items():
            value = getattr(self, f)
            if value is not None or f != "max_length":
                object.__setattr__(self, f, _integer(f, value, least))
        if self.head_sizes is not None:
            object.__setattr__(self, "head_sizes", tuple(_integer("head_sizes", h, 1) for h in self.head_sizes))
        shortest = self.length_from(1)
        if self.max_length is not None and self.max_length < shortest:
            wanted = f"at least {shortest}, the smallest length by min_length and multiple_of"
            raise ValueError(f"limits max_length: expected {wanted}; got {self.max_length}")
        if self.head_sizes == ():
            raise ValueError("limits head_sizes: expected at least one size, or None for all; got ()")

    def chosen_device(self, device: str) -> str:
        """Device to run on; for ``auto`` the only declared one, the CPU if there are several."""
        if device != "auto":
            return device
        return self.devices[0] if len(self.devices) == 1 else "cpu"

    def declaration_with(self, field: str, name: str) -> str:
        """Declaration of the present ``devices`` or ``dtypes`` and one more, for messages."""
        names = ", ".join(f'"{x}"' for x in (*getattr(self, field), name))
        return f'limits = {{"{field}": ({names})}}'

    def length_from(self, size: int) -> int:
        """Smallest n or m from ``size`` on that ``min_length`` and ``multiple_of`` allow."""
        return -(-max(size, self.min_length) // self.multiple_of) * self.multiple_of

    def dtypes_for(self, operation: str) -> tuple[str, ...]:
        """Float dtypes in which an operation is judged."""
        return dict(self.dtypes_by_operation).get(operation, self.dtypes)

    def formats_of(self, operation: str) -> tuple[Formats, ...]:
        """Formats of quantised operands that an operation takes."""
        return dict(self.operand_formats).get(operation, ())

    def gives_gradients(self, operation: str) -> bool:
        """True if ``vjp`` supports an operation."""
        return self.gradients is None or operation in self.gradients

    def has(self, feature: str) -> bool:
        """True if the backend supports an optional part of an operation."""
        return self.features is None or feature in self.features

    @classmethod
    def of(cls, declared: "Limits | Mapping[str, Any] | None") -> "Limits":
        """Read the limits that a backend declares: an instance, a mapping of some fields, or None."""
        return declared_as(cls, declared, "limits", "fields")


def _by_operation(declared: Any, dtypes: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Convert ``dtypes_by_operation`` to pairs of operation and dtypes, in the order of ``dtypes``."""
    if not isinstance(declared, Mapping | tuple):
        raise ValueError(f"limits dtypes_by_operation: expected a mapping from operations to dtypes; got {declared!r}")
    for operation, own in dict(declared).items():
        if not isinstance(own, tuple | list) or not own or not set(own) <= set(dtypes):
            known = ", ".join(dtypes)
            raise ValueError(f"limits dtypes_by_operation: {operation}: expected some of {known}; got {own!r}")
    return tuple((name, tuple(d for d in dtypes if d in own)) for name, own in dict(declared).items())


def _formats(declared: Any) -> tuple[tuple[str, tuple[Formats, ...]], ...]:
    """Convert ``operand_formats`` to pairs of operation and formats."""
    formats = _as_dict(declared, "a mapping from operations to tuples of formats")
    for operation, of_calls in formats.items():
        if not isinstance(of_calls, tuple | list) or not of_calls:
            raise ValueError(f"limits operand_formats: {operation}: expected a tuple of formats; got {of_calls!r}")
    return tuple((name, tuple(map(_formats_of_call, of_calls))) for name, of_calls in formats.items())


def _formats_of_call(declared: Any) -> Formats:
    if isinstance(declared, str):
        return _known_format(declared)
    by_argument = _as_dict(declared, "a format, or a mapping from arguments to formats")
    return tuple((str(argument), _known_format(name)) for argument, name in by_argument.items())


def _known_format(name: str) -> str:
    try:
        return operand_format(name).name
    except ValueError as error:
        raise ValueError(f"limits operand_formats: {error}") from None


def _as_dict(declared: Any, expected: str) -> dict[str, Any]:
    try:
        return dict(declared)
    except (TypeError, ValueError):
        raise ValueError(f"limits operand_formats: expected {expected}; got {declared!r}") from None


def _integer(field: str, value: Any, least: int) -> int:
    """Convert an integer of any type to ``int``; ``ValueError`` if it is another type or below ``least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(f"limits {field}: expected an integer of at least {least}; got {value!r}")
    return operator.index(value)
