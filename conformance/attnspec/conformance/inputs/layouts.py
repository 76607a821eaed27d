"""Memory layouts: views with the same numbers inside larger arrays of other numbers."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.inputs.dtypes import is_float

Convert = Callable[[Numbers], Any]
Layout = Callable[[Numbers, Convert], Any]
"""Writes numbers into a larger array, converts it, and returns a view of the numbers."""

VIEW_ERRORS = (TypeError, IndexError, AttributeError, ValueError, NotImplementedError)
"""Exceptions of backend arrays that cannot be cut, transposed, reversed or written to."""

FAR_OFFSET = 2**31 + 2**16
"""A distance in elements that needs more than 31 bits."""


def _wrong(x: Numbers) -> Numbers:
    """Numbers that differ everywhere from ``x``, for the memory around an array."""
    return np.asarray(~x if x.dtype == bool else x + x.dtype.type(1))


def _two_rows(x: Numbers) -> Numbers:
    return np.ones((*x.shape[:-2], 2, x.shape[-1]), x.dtype)


def every_second(x: Numbers, convert: Convert) -> Any:
    """Every second number along the last axis."""
    return convert(np.stack([x, _wrong(x)], axis=-1).reshape(*x.shape[:-1], 2 * x.shape[-1]))[..., ::2]


def last_exchanged(x: Numbers, convert: Convert) -> Any:
    """The last two axes exchanged."""
    return convert(x.swapaxes(-1, -2)).swapaxes(-1, -2) if x.ndim > 1 else convert(x)


def reversed_axes(x: Numbers, convert: Convert) -> Any:
    """All axes in reverse order."""
    pairs = [(i, x.ndim - 1 - i) for i in range(x.ndim // 2)]
    for pair in pairs:
        x = x.swapaxes(*pair)
    view = convert(x)
    for pair in pairs:
        view = view.swapaxes(*pair)
    return view


def packed(x: Numbers, convert: Convert) -> Any:
    """The middle third of longer rows, as in packed queries, keys and values."""
    return convert(np.concatenate([_wrong(x), x, _wrong(x)], axis=-1))[..., x.shape[-1] : 2 * x.shape[-1]]


def padded_rows(x: Numbers, convert: Convert) -> Any:
    """Rows whose stride is greater than their length."""
    return convert(np.concatenate([x, _wrong(x)[..., :3]], axis=-1))[..., : x.shape[-1]]


def padded_positions(x: Numbers, convert: Convert) -> Any:
    """The first rows of a longer array, as in a cache allocated for later positions."""
    if x.ndim < 2:
        return padded_rows(x, convert)
    return convert(np.concatenate([x, _two_rows(x)], -2))[..., : x.shape[-2], :]


def later_positions(x: Numbers, convert: Convert) -> Any:
    """The last rows of a longer array, at an offset."""
    if x.ndim < 2:
        return shifted(x, convert)
    return convert(np.concatenate([_two_rows(x), x], -2))[..., 2:, :]


def heads_behind(x: Numbers, convert: Convert) -> Any:
    """(…, positions, heads, features) in memory, seen as (…, heads, positions, features)."""
    return convert(x.swapaxes(-2, -3)).swapaxes(-2, -3) if x.ndim > 2 else convert(x)


def packed_heads(x: Numbers, convert: Convert) -> Any:
    """(…, positions, 3, heads, features) in memory; the second of 3, heads before positions."""
    if x.ndim < 3:
        return packed(x, convert)
    heads = x.swapaxes(-2, -3)
    return convert(np.stack([_wrong(heads), heads, _wrong(heads)], axis=-3))[..., 1, :, :].swapaxes(-2, -3)


def batch_exchanged(x: Numbers, convert: Convert) -> Any:
    """The first two axes exchanged: sequences first, batch second."""
    return convert(x.swapaxes(0, 1)).swapaxes(0, 1) if x.ndim > 2 else convert(x)


def shifted(x: Numbers, convert: Convert) -> Any:
    """Contiguous, at an offset of one number."""
    return convert(np.concatenate([_wrong(x.reshape(-1)[:1]), x.reshape(-1)]))[min(x.size, 1) :].reshape(x.shape)


def backwards(x: Numbers, convert: Convert) -> Any:
    """The last axis reversed, in frameworks with negative strides."""
    return convert(x[..., ::-1])[..., ::-1]


def rows_backwards(x: Numbers, convert: Convert) -> Any:
    """All axes reversed, except the last of several."""
    reverse = (slice(None, None, -1),) * max(x.ndim - 1, 1)
    return convert(x[reverse])[reverse]


def read_only(x: Numbers, convert: Convert) -> Any:
    """Read-only memory, in frameworks that have it."""
    array = convert(x)
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def negated(x: Numbers, convert: Convert) -> Any:
    """Numbers of opposite sign in memory, negated lazily as PyTorch can."""
    view = getattr(_namespace(convert(x)), "_neg_view", None)
    if view is None or not is_float(x):
        raise NotImplementedError("no lazy negation")
    return view(convert(-x))


LAYOUTS: tuple[Layout, ...] = (
    packed,
    every_second,
    heads_behind,
    last_exchanged,
    padded_rows,
    packed_heads,
    shifted,
    read_only,
    reversed_axes,
    padded_positions,
    backwards,
    batch_exchanged,
    later_positions,
    rows_backwards,
)
"""All layouts that need only views."""


def same_slices(x: Numbers, axis: int) -> Numbers:
    """The array with its first slice along an axis repeated."""
    return np.repeat(np.take(x, [0], axis), x.shape[axis], axis)


def with_stride_0(x: Numbers, axis: int | tuple[int, ...], convert: Convert) -> Any:
    """An array of stride 0 along axes; a plain one if the framework cannot broadcast."""
    first = x
    for place in (axis,) if isinstance(axis, int) else axis:
        first = np.take(first, [0], place)
    array = convert(first)
    broadcast = getattr(_namespace(array), "broadcast_to", None)
    return convert(x) if broadcast is None else broadcast(array, x.shape)


def bytes_spread_out(x: Numbers, axis: int) -> int:
    """Bytes of the memory over which :func:`spread_out` spreads an array."""
    size = x.shape[axis]
    return 0 if size < 2 else size * -(-FAR_OFFSET // (size - 1)) * x.itemsize


def spread_out(x: Numbers, axis: int, convert: Convert) -> Any:
    """An array whose last offset along an axis exceeds 31 bits, or None.

    The memory in between is never touched, so a system need not provide it. None if the axis has one number, if the
    framework has no such arrays, or if the system refuses.
    """
    size = x.shape[axis]
    array = convert(x)
    empty = getattr(_namespace(array), "empty", None)
    if size < 2 or not x.size or x.itemsize > 4 or empty is None:
        return None
    axis_first = np.moveaxis(x, axis, 0)
    device = {"device": array.device} if hasattr(array, "device") else {}
    try:
        view = empty((size, -(-FAR_OFFSET // (size - 1))), dtype=array.dtype, **device)[:, : axis_first[0].size]
        view = view.reshape(axis_first.shape)
        for i in range(axis % x.ndim):
            view = view.swapaxes(i, i + 1)
        view[...] = array
    except (MemoryError, RuntimeError, *VIEW_ERRORS):
        return None
    return view


def _namespace(array: Any) -> Any:
    """The module with the functions for a backend's array; None if unknown."""
    namespace = getattr(array, "__array_namespace__", None)
    if namespace is not None:
        return namespace()
    name = type(array).__module__
    modules = (sys.modules.get(name), sys.modules.get(name.partition(".")[0]))
    return next((module for module in modules if hasattr(module, "broadcast_to")), None)
