"""Objects that stay in the backend's process, by number: a request sends only the number."""

from typing import Any


class Unconverted(Exception):
    """Stands for an array whose conversion raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(type(error)))
        self.error = error


class Kept:
    """Numbered objects. Even numbers are chosen by the judge, which then needs no answer."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self._last = -1

    def keep(self, x: Any) -> int:
        """Store an object under a new odd number."""
        self._last += 2
        self.objects[self._last] = x
        return self._last


KEPT = Kept()


def kept(number: int) -> Any:
    """Return the object of a number; unpickling a request puts it in place of the handle."""
    found = KEPT.objects[number]
    if isinstance(found, Unconverted):
        raise found
    return found
