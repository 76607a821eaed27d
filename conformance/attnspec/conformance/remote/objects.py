"""Objects that stay in the backend's process; requests and answers hold only their numbers."""

from typing import Any


class Unconverted(Exception):
    """Stands for an array whose conversion raised an exception; raised when a request uses the array."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(type(error)))
        self.error = error


class ObjectStore:
    """Objects by number: odd for results, even for numbers that the judge assigned in advance."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self._last = -1

    def keep(self, x: Any) -> int:
        """Store an object under a new odd number."""
        self._last += 2
        self.objects[self._last] = x
        return self._last


OBJECTS = ObjectStore()


def kept_object(number: int) -> Any:
    """Return the object of a number; unpickling a handle calls this."""
    x = OBJECTS.objects[number]
    if isinstance(x, Unconverted):
        raise x
    return x
