"""Base of backends that compute with JAX arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnspec.backends.bases.contract import Operations
from attnspec.backends.bases.numpy import NDArray
from attnspec.spec import Limits
from attnspec.spec.contract.tree import flatten, map_tree


class JaxBackend(Operations[jax.Array]):
    """Subclass, set ``name`` and define operations as methods.

    JAX computes in float64 only after ``jax.config.update("jax_enable_x64", True)``.
    """

    name: str

    @property
    def limits(self) -> Limits:
        """Dtypes that JAX is configured for, and its default device; float64 only with ``jax_enable_x64``."""
        wide = ("float64",) if jax.config.jax_enable_x64 else ()
        return Limits(dtypes=(*wide, "float32", "bfloat16", "float16"), devices=(jax.default_backend(),))

    def from_numpy(self, array: NDArray, *, device: str) -> jax.Array:
        """Return a copy on the device with the same dtype; int64 needs ``jax_enable_x64``.

        ``ValueError`` for a device that does not exist, or for floats that JAX would narrow.
        """
        kind, _, index = device.partition(":")
        try:
            target = jax.devices(kind)[int(index or 0)]
        except (RuntimeError, IndexError, ValueError):
            platforms = ", ".join(sorted({d.platform for d in jax.devices()} | {"cpu"}))
            raise ValueError(f"device: expected one of {platforms}; got {device!r}") from None
        # Narrowed floats would be judged at another dtype. Integers, such as tokens, may be narrowed.
        if array.dtype.kind not in "iu" and jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            raise ValueError(f"dtype: expected one that JAX keeps (jax_enable_x64 is off); got {array.dtype}")
        return jax.device_put(jnp.array(array), target)

    def to_numpy(self, array: jax.Array) -> NDArray:
        """Return a copy with the same dtype; ``TypeError`` unless `array` is a JAX array."""
        if not isinstance(array, jax.Array):
            raise TypeError(f"result: expected a jax.Array; got {type(array).__name__}")
        return np.array(array)

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, jax.Array]:
        """Return the gradients of ⟨cotangent, operation(**arguments)⟩, keyed by path, for every float array."""
        float_arrays = {
            path: a
            for path, a in flatten(dict(arguments)).items()
            if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jnp.floating)
        }
        # of several results, such as tokens and their score, only those with a cotangent are differentiated
        cotangents = {path: c for path, c in flatten(cotangent).items() if c is not None}

        def apply(float_arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
            result = getattr(self, operation)(**map_tree(dict(arguments), lambda path, a: float_arrays.get(path, a)))
            return {path: x for path, x in flatten(result).items() if path in cotangents}

        (gradients,) = jax.vjp(apply, float_arrays)[1](cotangents)
        return dict(gradients)
