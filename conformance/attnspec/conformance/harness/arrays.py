"""Conversion of any framework's arrays to NumPy, by DLPack or the array interface."""

import ctypes
from typing import Any, cast

import ml_dtypes
import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.foreign_calls import Raised, call_safely, printable

PROTOCOLS = ("__dlpack__", "__array_interface__", "__array__")

HOST = {1, 3, 11}
"""DLPack's device numbers for memory that the CPU reads: its own, and pinned by CUDA or ROCm."""

CPU = (1, 0)

COPIES = ("cpu", "get")
"""Methods that copy an array to the host, in frameworks whose DLPack export does not."""

LAZY = ("resolve_neg", "resolve_conj")
"""Methods that compute numbers which a framework has only marked as negated or conjugated."""

KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}
"""DLPack's codes of NumPy's kinds."""

OTHERS = {
    (4, 16): ml_dtypes.bfloat16,
    (8, 8): ml_dtypes.float8_e4m3,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (11, 8): ml_dtypes.float8_e4m3fnuz,
    (12, 8): ml_dtypes.float8_e5m2,
    (13, 8): ml_dtypes.float8_e5m2fnuz,
}
"""DLPack's codes and bits of dtypes that NumPy lacks."""

EIGHT_BITS = {np.dtype(dtype).name for (_, bits), dtype in OTHERS.items() if bits == 8}
"""Names of the 8-bit dtypes."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("number", ctypes.c_int32))


class _Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLPack's ``DLTensor``, the beginning of its managed tensors."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Lent:
    """Memory of another framework, kept alive as long as an array reads it."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self.capsule, self.__array_interface__ = capsule, interface


def read(x: Any, name: str) -> Numbers:
    """Return any framework's array as a NumPy array, without a copy if it lies in host memory.

    bfloat16 and the formats of 8 bits have the dtypes of ``ml_dtypes``. Errors: ``TypeError`` for an array that cannot
    be read, such as a tensor that requires gradients, with its framework's message; and for a masked array.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array of which all numbers count; got {type(x).__name__}")
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if not any(hasattr(x, protocol) for protocol in PROTOCOLS):
        raise TypeError(f"{name}: expected an array, by DLPack or the array interface; got {type(x).__name__}")
    found = call_safely(lambda: _of_capsule(_capsule(x)) if hasattr(x, PROTOCOLS[0]) else np.asarray(x))
    if isinstance(found, Raised):
        said = " ".join(str(found.error).split()) or type(found.error).__name__
        raise TypeError(f"{name}: expected an array that can be read; got {type(x).__name__}: {printable(said)}")
    return cast(Numbers, found)


def _capsule(x: Any) -> Any:
    """Return the capsule of an array in host memory, copied there from other devices."""
    for resolve in LAZY:
        x = getattr(x, resolve)() if hasattr(x, resolve) else x
    if x.__dlpack_device__()[0] in HOST:
        return x.__dlpack__()
    try:
        return x.__dlpack__(dl_device=CPU)
    except (TypeError, ValueError, BufferError):
        copied = next((getattr(x, copy)() for copy in COPIES if hasattr(x, copy)), None)
        if copied is None:
            raise
        return copied.__dlpack__()


def _of_capsule(capsule: Any) -> Numbers:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    dtype = _dtype(tensor.dtype)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = tuple(s * dtype.itemsize for s in tensor.strides[: tensor.ndim]) if tensor.strides else None
    interface = {
        "version": 3,
        "data": (tensor.data + tensor.byte_offset, True),
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{dtype.itemsize}",
    }
    return np.asarray(_Lent(capsule, interface)).view(dtype)


def _dtype(found: _Dtype) -> np.dtype[Any]:
    if found.lanes == 1 and (found.code, found.bits) in OTHERS:
        other: np.dtype[Any] = np.dtype(OTHERS[found.code, found.bits])
        return other
    if found.lanes != 1 or found.code not in KINDS or found.bits % 8:
        raise TypeError(f"its numbers are of code {found.code} with {found.bits} bits in {found.lanes} lanes")
    return np.dtype(f"{KINDS[found.code]}{found.bits // 8}")
