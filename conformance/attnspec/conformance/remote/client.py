"""The judge's side: the process of a backend, its time, and a backend whose every call is made there."""

import marshal
import os
import pickle
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from attnspec.conformance.judging.foreign_calls import Raised, printable
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.remote.arrays import ABSENT, RemoteArray, named_like
from attnspec.conformance.remote.clock import INTERVAL, Clock, Deadline, Watch
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.raised import Breach, as_told
from attnspec.conformance.remote.sandbox import files_of, launch
from attnspec.conformance.remote.wire import LENGTHS, MAX_BYTES, MAX_TEXT, Reader, dtype_text, header

QUEUED, QUEUED_BYTES = 512, 1 << 22
"""Arrays, and their bytes, that wait for the next request."""

KINDS = ("r", "e", "u", "l", "x", "h")
"""Answers: a result, what was raised, what a conversion raised before, that a step failed whose success was taken for
granted, why there is no backend, what it declares."""

LARGE = 1 << 14
"""Bytes from which on an array is sent from where it is, behind the request, and is not copied first."""

AHEAD = 16
"""Arrays that are read ahead with one request."""

NOTHING = marshal.dumps([])

TIMEOUT = struct.pack("ll", 0, int(INTERVAL * 1e6))
"""The interval between two looks at the time, as sockets take it: they need no further call of the system to wait."""

ZERO = bytes(1)

UNLIKE = (TypeError, IndexError, AttributeError, ValueError)
"""What NumPy raises where it cannot say what shape there will be."""

READING = {"read", "read_on", "converted", "attribute", "array"}
"""Requests that change no numbers."""


class HostEnded(KeyboardInterrupt):
    """The process of a backend has ended, or was ended since it did not answer.

    A KeyboardInterrupt, so that only what judges a case catches it, and nothing that guards against a backend's errors.
    """

    def __init__(self, reason: Reason, words: str, left: list[str]) -> None:
        super().__init__(words)
        self.reason, self.words, self.left = reason, words, left


class Hasty(KeyboardInterrupt):
    """A step failed that was not waited for: what was checked meanwhile is checked again, waiting for every answer."""


class Host:
    """The process of a backend, and what was sent to it and not answered yet.

    ``allowed`` are the seconds of a check. ``adopted`` says that this process has no other children.
    """

    def __init__(
        self,
        name: str,
        device: str,
        *,
        allowed: float,
        path: list[str] | None = None,
        adopted: bool = False,
        sandbox: bool = False,
    ) -> None:
        self.name, self.adopted = name, adopted
        self.clock = Clock(allowed)
        self.changes = 0
        self.left: list[str] = []
        self.eager, self.patient = True, False
        self._known: dict[Any, type[RemoteArray]] = {}
        self._libraries: dict[type, Mapping[str, Any]] = {}
        self._queue: list[Any] = []
        self._large: list[np.ndarray[Any, Any]] = []
        self._waiting, self._number = 0, 0
        self._ahead: dict[int, Any] = {}
        self._since, self._last = -1, -1
        self._buffer = bytearray(1 << 16)
        self._socket, theirs = socket.socketpair()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, TIMEOUT)
        self.process = launch(
            "attnspec.conformance.remote.host",
            *(str(theirs.fileno()), name, device, os.pathsep.join(path or ())),
            sandbox=sandbox,
            readable=files_of(name, path or ()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    # Beginning and end -------------------------------------------------------------------------------------------

    def introduced(self, seconds: float) -> Mapping[str, Any]:
        """What the backend declares; :class:`BackendError` if it cannot be used."""
        try:
            said = self._received(Deadline(seconds))
        except HostEnded as end:
            if end.reason is Reason.HUNG:
                raise BackendError(
                    f"backend {self.name!r}: expected its import to end within {seconds:g} s; it did not"
                ) from None
            raise BackendError(f"backend {self.name!r}: its import {end.words}") from None
        letter, found = said[0]
        if letter == "x" or not isinstance(found, dict):
            self.close()
            raise BackendError(printable(str(found)))
        return found

    def begin(self) -> None:
        """Begin a check, whose time is counted from now on."""
        self.clock.reset()

    def close(self) -> list[str]:
        """End the process and all that it has started; who was left behind."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._queue.clear()
            self._large.clear()
            self.left += self.process.end(adopted=self.adopted)
        return self.left

    def _ended(self, reason: Reason, words: str) -> HostEnded:
        # A process that has ended by itself is not killed before it has said how.
        if reason is Reason.CRASHED:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
            if self.process.poll() is not None:
                words = f"ended the process {self.process.ending}"
        return HostEnded(reason, words, self.close())

    def _watch(self, clock: Clock) -> Watch:
        return Watch(self.process.pid, clock, self._hung)

    def _hung(self, words: str) -> NoReturn:
        raise self._ended(Reason.HUNG, words)

    # Requests ----------------------------------------------------------------------------------------------------

    def queued(self, x: "np.ndarray[Any, Any]", kind: type[RemoteArray]) -> RemoteArray:
        """An array that will be converted before the next request."""
        text = dtype_text(x.dtype)
        plain = text is not None and x.flags.c_contiguous
        self._number += 2
        if not plain:
            self._queue.append((self._number, pickle.dumps(x, 5)))
        elif x.nbytes < LARGE:
            self._queue.append((self._number, text, x.shape, x.tobytes()))
        else:
            self._queue.append((self._number, text, x.shape, x.nbytes))
            self._large.append(x)
        self._waiting += x.nbytes
        self.changes += 1
        found = kind(self, self._number, x.shape)
        if not self.eager or len(self._queue) > QUEUED or self._waiting > QUEUED_BYTES:
            self.ask("converted", found)
        return found

    def view(self, what: str, x: RemoteArray, given: Any, like: Callable[["np.ndarray[Any, Any]"], Any]) -> Any:
        """What a step makes of an array; ``like`` does the same with an array of NumPy, of which the shape is known.

        It is not waited for where such a step has succeeded before.
        """
        try:
            shape = like(np.ndarray(x.shape, np.uint8, ZERO, 0, (0,) * x.ndim)).shape
        except UNLIKE:
            return self.ask(what, x, *given)
        key = what, type(x), _manner(given)
        if self.patient or key not in self._known:
            found = self.ask(what, x, *given)
            if issubclass(type(found), RemoteArray) and found.shape == shape:
                self._known[key] = type(found)
            return found
        return self._known[key](self, self._later(what, x, given, shape), shape)

    def change(self, what: str, x: RemoteArray, *given: Any) -> None:
        """Change an array; it is not waited for where such a change has succeeded before."""
        key = what, type(x), *map(type, given)
        if self.patient or key not in self._known:
            self.ask(what, x, *given)
            self._known[key] = type(x)
        else:
            self._later(what, x, given, None)

    def library(self, x: RemoteArray) -> Mapping[str, Any]:
        """The functions of an array's library that layouts need, as far as it has them."""
        if type(x) not in self._libraries:
            found = {**self.ask("functions", x)}
            if "broadcast_to" in found:
                found["broadcast_to"] = partial(self._broadcast, found["broadcast_to"])
            self._libraries[type(x)] = found
        return self._libraries[type(x)]

    def _broadcast(self, function: Any, x: RemoteArray, shape: tuple[int, ...]) -> Any:
        return self.view("apply", x, (function, shape), lambda x: np.broadcast_to(x, shape))

    def _later(self, what: str, x: RemoteArray, given: Any, shape: tuple[int, ...] | None) -> int:
        """Have something done before the next request: the number of what comes of it."""
        self._number += 2
        self._queue.append(pickle.dumps((self._number, shape, what, x, *given), 5))
        self.changes += 1
        return self._number

    def forget(self, number: int) -> None:
        """Let go of an object before the next request."""
        if self._socket.fileno() >= 0:
            self._queue.append(number)

    def ask(self, what: str, *given: Any) -> Any:
        """Have something done, and return what comes of it; whatever it raises is raised here."""
        request = pickle.dumps((what, *given), 5)
        queue, large = NOTHING, self._large
        if self._queue:
            queue = marshal.dumps(self._queue)
            self._queue, self._large, self._waiting = [], [], 0
        if what not in READING:
            self.changes += 1
        self._send(LENGTHS.pack(len(queue), len(request)) + queue + request)
        for x in large:
            self._send(x.reshape(-1).view(np.uint8))
        (letter, found), payload = self._received(self.clock)
        try:
            reader = Reader(payload, lambda *made: self._made(reader, *made))
            if letter == "r":
                if what == "read_on":
                    self._ahead, self._since = {number: (reader, seen) for number, seen in found[1:]}, self.changes
                    found = found[0]
                if what not in ("read", "read_on"):
                    return reader.value(found)
                letter, found = found
                if letter == "v":
                    return reader.value(found)
            if letter == "l":
                if self.patient:
                    raise Breach("an error of a step that was waited for")
                self.patient = True
                raise Hasty
            error = as_told(found)
        except (Breach, ValueError, TypeError) as breach:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({breach})") from None
        if letter == "u":
            self.eager = False
            if what != "converted":
                raise Violation(f"from_numpy raised {Raised(error).message}", reason=Reason.RAISED)
        raise error

    def read(self, x: RemoteArray) -> Any:
        """The numbers of an array.

        The next arrays are read ahead; of arrays that the backend gave, only if they are read in a row.
        """
        number = x._number
        known = x.seen()
        if known is ABSENT and self._since == self.changes:
            known = self._ahead.pop(number, ABSENT)
        alone, self._last = number % 2 and number != self._last + 2, number
        if known is ABSENT:
            return self.ask("read", x) if alone else self.ask("read_on", x, number, AHEAD)
        try:
            value, error = seen(*known)
        except (Breach, ValueError, TypeError) as breach:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({breach})") from None
        if error is not None:
            raise error
        return value

    def _made(self, reader: Reader, letter: str, number: int, more: list[Any]) -> Any:
        if letter != "a":
            return named_like(letter, more[0])(self, number)
        shape, numpy, name, seen = more
        read = ABSENT if seen is None else (reader, seen)
        return named_like("n" if numpy else "a", name)(self, number, tuple(map(int, shape)), read)

    # Bytes -------------------------------------------------------------------------------------------------------

    def _send(self, message: Any) -> None:
        view = memoryview(message)
        watch = self._watch(self.clock)
        while view:
            try:
                view = view[self._socket.send(view) :]
                watch.look_now_and_then()
            except BlockingIOError:
                watch.look()
            except OSError:
                raise self._ended(Reason.CRASHED, "ended the process") from None

    def _received(self, clock: Clock) -> tuple[Any, Any]:
        """The JSON and the bytes of an answer."""
        watch = self._watch(clock)
        count = self._fill(memoryview(self._buffer), 0, LENGTHS.size, watch)
        text, bytes_ = LENGTHS.unpack_from(self._buffer)
        if text > MAX_TEXT or bytes_ > MAX_BYTES:
            raise self._ended(Reason.CRASHED, "sent a malformed reply (too much of it)")
        whole = LENGTHS.size + text + bytes_
        buffer = np.empty(whole, np.uint8).data
        have = min(count, whole)
        buffer[:have] = memoryview(self._buffer)[:have]
        self._fill(buffer, have, whole, watch)
        middle = LENGTHS.size + text
        try:
            said = header(buffer[LENGTHS.size : middle])
            if count > whole or not isinstance(said, list) or len(said) != 2 or said[0] not in KINDS:
                raise Breach("no frame")
        except Breach as breach:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({breach})") from None
        return said, buffer[middle:]

    def _fill(self, buffer: memoryview, count: int, least: int, watch: Watch) -> int:
        while count < least:
            try:
                got = self._socket.recv_into(buffer[count:])
            except BlockingIOError:
                watch.look()
                continue
            except OSError:
                got = 0
            if not got:
                raise self._ended(Reason.CRASHED, "ended the process")
            count += got
            watch.look_now_and_then()
        return count


def _manner(given: Any) -> Any:
    """What sort of step this is: some libraries can cut arrays, but cannot run through them backwards."""
    if isinstance(given, tuple):
        return tuple(map(_manner, given))
    if isinstance(given, slice):
        return slice, given.step is not None and given.step < 0
    return given if isinstance(given, str) else type(given)


def seen(reader: Reader, found: Any) -> tuple[Any, BaseException | None]:
    """The numbers that an array was seen to hold, or what the conversion raised."""
    letter, value = found
    return (reader.value(value), None) if letter == "v" else (None, as_told(value))
