"""Conversion of any framework's arrays to NumPy, by DLPack or the array interface."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.foreign_calls import Raised, call_safely, printable

PROTOCOLS = ("__dlpack__", "__array_interface__", "__array__")

HOST_DEVICES = {1, 3, 11}
"""DLPack's device numbers for memory that the CPU reads: its own, and pinned by CUDA or ROCm."""

CPU_DEVICE = (1, 0)

COPY_METHODS = ("cpu", "get")
"""Methods that copy an array to the host, in frameworks whose DLPack export does not."""

RESOLVE_METHODS = ("resolve_neg", "resolve_conj")
"""Methods that carry out PyTorch's lazy negation or conjugation, which DLPack does not export."""

NUMPY_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}
"""NumPy's kind letter for each type code of DLPack."""

EXTENDED_DTYPES = {
    (4, 16): ml_dtypes.bfloat16,
    (8, 8): ml_dtypes.float8_e4m3,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (11, 8): ml_dtypes.float8_e4m3fnuz,
    (12, 8): ml_dtypes.float8_e5m2,
    (13, 8): ml_dtypes.float8_e5m2fnuz,
    (14, 8): ml_dtypes.float8_e8m0fnu,
}
"""Dtypes that NumPy lacks, by DLPack's type code and number of bits."""

EIGHT_BITS = {np.dtype(dtype).name for (code, bits), dtype in EXTENDED_DTYPES.items() if bits == 8 and code != 14}
"""Names of the 8-bit dtypes, except that of scales, which are powers of 2."""

PACKED_FLOAT4 = (17, 4, 2)
"""DLPack's type code, bits and lanes of two codes of float4 in a byte."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("number", ctypes.c_int32))


class _Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLPack's ``DLTensor`` struct, with which every managed tensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _BorrowedMemory:
    """Another framework's memory, kept alive while a NumPy array reads it."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self.capsule, self.__array_interface__ = capsule, interface


def read(x: Any, name: str) -> Numbers:
    """Return any framework's array as a NumPy array. Host memory is not copied.

    bfloat16 and 8-bit floats get the dtypes of ``ml_dtypes``. Errors: ``TypeError`` for a masked array, and for one
    that its framework refuses to export, such as a tensor that requires gradients; the message quotes the framework.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array without masked entries; got {type(x).__name__}")
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if not any(hasattr(x, protocol) for protocol in PROTOCOLS):
        raise TypeError(f"{name}: expected an array, by DLPack or the array interface; got {type(x).__name__}")
    array = call_safely(lambda: _array_of_capsule(_capsule(x)) if hasattr(x, PROTOCOLS[0]) else np.asarray(x))
    if isinstance(array, Raised):
        message = " ".join(str(array.error).split()) or type(array.error).__name__
        raise TypeError(f"{name}: expected an array that can be read; got {type(x).__name__}: {printable(message)}")
    return cast(Numbers, array)


def _capsule(x: Any) -> Any:
    """Return the DLPack capsule of an array, copied to host memory from other devices."""
    for resolve in RESOLVE_METHODS:
        x = getattr(x, resolve)() if hasattr(x, resolve) else x
    if x.__dlpack_device__()[0] in HOST_DEVICES:
        return x.__dlpack__()
    try:
        return x.__dlpack__(dl_device=CPU_DEVICE)
    except (TypeError, ValueError, BufferError):
        host_copy = next((getattr(x, copy)() for copy in COPY_METHODS if hasattr(x, copy)), None)
        if host_copy is None:
            raise
        return host_copy.__dlpack__()


def _array_of_capsule(capsule: Any) -> Numbers:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    packed = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == PACKED_FLOAT4
    dtype = np.dtype(np.uint8) if packed else _dtype(tensor.dtype)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return _unpacked(np.empty(shape, dtype)) if packed else np.empty(shape, dtype)
    strides = tuple(s * dtype.itemsize for s in tensor.strides[: tensor.ndim]) if tensor.strides else None
    interface = {
        "version": 3,
        "data": (tensor.data + tensor.byte_offset, True),  # read-only
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{dtype.itemsize}",  # bytes, since this interface has no bfloat16
    }
    array = np.asarray(_BorrowedMemory(capsule, interface)).view(dtype)
    return _unpacked(array) if packed else array


def _unpacked(pairs: Numbers) -> Numbers:
    """Return codes of float4 from bytes with two each, the first in the lower bits."""
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
    return codes.view(ml_dtypes.float4_e2m1fn)


def _dtype(dtype: _Dtype) -> np.dtype[Any]:
    if dtype.lanes == 1 and (dtype.code, dtype.bits) in EXTENDED_DTYPES:
        extended: np.dtype[Any] = np.dtype(EXTENDED_DTYPES[dtype.code, dtype.bits])
        return extended
    if dtype.lanes != 1 or dtype.code not in NUMPY_KINDS or dtype.bits % 8:
        raise TypeError(
            f"DLPack type code {dtype.code} with {dtype.bits} bits and {dtype.lanes} lanes has no NumPy dtype"
        )
    return np.dtype(f"{NUMPY_KINDS[dtype.code]}{dtype.bits // 8}")


def converter_to_arrays_like(x: Any) -> tuple[np.dtype[Any], Callable[[Numbers], Any]]:
    """Return the widest float dtype for arrays like ``x``, and their conversion from NumPy.

    Converted arrays are on the device of ``x``. PyTorch, JAX and CuPy are known; for any other framework they stay in
    NumPy.
    """
    double, single = np.dtype(np.float64), np.dtype(np.float32)
    # A framework that no array came from is not imported.
    torch, jax, cupy = (sys.modules.get(name) for name in ("torch", "jax", "cupy"))
    if torch is not None and isinstance(x, torch.Tensor):
        # Apple's GPUs have no float64.
        return single if x.device.type == "mps" else double, lambda array: torch.as_tensor(array).to(x.device)
    if jax is not None and isinstance(x, jax.Array):
        device = next(iter(x.devices()))
        return double if jax.config.jax_enable_x64 else single, lambda array: jax.device_put(array, device)
    if cupy is not None and isinstance(x, cupy.ndarray):
        return double, cupy.asarray
    return double, np.asarray
