"""NumPy's ``__array_function__`` protocol (NEP 18) for functions of the reference.

With it, a duck array can replace a whole function and not only the NumPy calls in it. Softmax needs this: its shift by
the maximum cancels exactly, which an error propagated call by call does not show.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from attnspec.reference.defining.definition import REFERENCE

F = TypeVar("F", bound=Callable[..., Any])


def overridable(formula: F) -> F:
    """Let arguments that are not NumPy arrays override a formula through ``__array_function__``.

    The method is called on every such argument until one returns a result: subclasses before their bases, otherwise
    from the left. ``func`` is the function of this name in :data:`REFERENCE`, if there is one, else the decorated one.
    ``TypeError`` if all arguments return ``NotImplemented``.
    """

    @wraps(formula)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        overriding = _overriding((*args, *kwargs.values()))
        if not overriding:
            return formula(*args, **kwargs)
        types = tuple(type(argument) for argument in overriding)
        for argument in overriding:
            public = REFERENCE.get(formula.__name__, dispatched)
            result = argument.__array_function__(public, types, args, kwargs)
            if result is not NotImplemented:
                return result
        raise TypeError(f"{formula.__name__}: no implementation for {', '.join(t.__name__ for t in types)}")

    return cast(F, dispatched)


def _overriding(arguments: tuple[Any, ...]) -> list[Any]:
    """List one argument of each overriding type, in the order of the calls."""
    overriding: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if kind is np.ndarray or not hasattr(kind, "__array_function__") or kind in map(type, overriding):
            continue
        position = next((i for i, other in enumerate(overriding) if issubclass(kind, type(other))), len(overriding))
        overriding.insert(position, argument)
    return overriding
