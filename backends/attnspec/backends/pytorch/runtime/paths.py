"""The PyTorch backend with one path forced, for ``attnspec check``: a backend for each path.

Their names are ``attnspec.backends.pytorch.runtime.paths:llvm``, ``:pointwise`` and so on; all are in `PATHS`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any

from torch import Tensor

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.runtime.forcing import PATHS, forcing
from attnspec.spec import OPERATIONS


class Forced:
    """The PyTorch backend with one path forced, forward and backward, wherever it serves a call."""

    def __init__(self, path: str) -> None:
        self.path, self.name = path, f"pytorch by {path}"
        self.notes = {**backend.notes, "path": f"{path}, for every call that it serves"}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(backend, name)
        return self._forced(attribute) if name in OPERATIONS else attribute

    def _forced(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(operation)
        def forced(*args: Any, **kwargs: Any) -> Any:
            with forcing(self.path):
                return operation(*args, **kwargs)

        return forced

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
        """Return the gradients of a call on the path."""
        with forcing(self.path):
            return backend.vjp(operation, arguments, cotangent)

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Tensor]]]:
        """Return the result on the path, and its backward pass."""
        with forcing(self.path):
            return backend.pullback(operation, arguments, wanted)


llvm, pointwise, decode, small, plain, pytorch, flex = (Forced(path) for path in PATHS)
