"""The PyTorch backend with all calls that a path supports forced to it, for `attnspec check`:
``attnspec.backends.pytorch.runtime.paths:llvm``, ``:direct``, ``:step``, ``:few``, ``:plain``, ``:pytorch`` and
``:flex``."""

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any

from torch import Tensor

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.runtime.forcing import PATHS, forcing
from attnspec.spec import OPERATIONS


class Forced:
    """The backend with operations forced to one path that supports them, forward and backward."""

    def __init__(self, path: str) -> None:
        self.path, self.name = path, f"pytorch by {path}"
        self.notes = {**backend.notes, "path": f"{path}, where it serves a call"}

    def __getattr__(self, name: str) -> Any:
        found = getattr(backend, name)
        return self._forced(found) if name in OPERATIONS else found

    def _forced(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(operation)
        def forced(*args: Any, **kwargs: Any) -> Any:
            with forcing(self.path):
                return operation(*args, **kwargs)

        return forced

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
        """Gradients of a call on the path."""
        with forcing(self.path):
            return backend.vjp(operation, arguments, cotangent)

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Tensor]]]:
        """Result on the path, and its backward pass."""
        with forcing(self.path):
            return backend.pullback(operation, arguments, wanted)


llvm, direct, step, few, plain, pytorch, flex = (Forced(path) for path in PATHS)
