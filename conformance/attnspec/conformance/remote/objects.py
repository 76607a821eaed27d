"""The objects that stay in the process of a backend, by number: a request says the number alone."""

from typing import Any


class Unconverted(Exception):
    """An array that does not exist, since its conversion raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(type(error)))
        self.error = error


class Kept:
    """The objects that have a number: even ones are given by the judge, which needs no answer then."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self._last = -1

    def keep(self, x: Any) -> int:
        """A new number for an object."""
        self._last += 2
        self.objects[self._last] = x
        return self._last


KEPT = Kept()


def kept(number: int) -> Any:
    """The object of a number: a request is unpickled with it in place of what stands for the object."""
    found = KEPT.objects[number]
    if isinstance(found, Unconverted):
        raise found
    return found
