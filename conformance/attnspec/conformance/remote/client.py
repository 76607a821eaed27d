"""The judge's side of a backend's process: requests, answers, and the time limit."""

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
from attnspec.conformance.remote.raised import MalformedReply, as_told
from attnspec.conformance.remote.sandbox import files_of, launch
from attnspec.conformance.remote.wire import LENGTHS, MAX_BYTES, MAX_TEXT, Reader, dtype_text, header

QUEUED, QUEUED_BYTES = 512, 1 << 22
"""Largest number of arrays, and of their bytes, that wait for the next request."""

KINDS = ("r", "e", "u", "l", "x", "h")
"""Answers: r result, e exception, u failed conversion, l failed pipelined step, x why no backend, h declarations."""

LARGE = 1 << 14
"""Smallest array, in bytes, that is sent after the request from its own memory, without a copy."""

AHEAD = 16
"""Number of arrays read ahead with one request."""

NOTHING = marshal.dumps([])

TIMEOUT = struct.pack("ll", 0, int(INTERVAL * 1e6))
"""Interval between two looks at the clock, as a socket option: waiting needs no further system call."""

ZERO = bytes(1)

UNLIKE = (TypeError, IndexError, AttributeError, ValueError)
"""Exceptions of NumPy when it cannot predict a shape."""

READING = {"read", "read_on", "converted", "attribute", "array"}
"""Requests that change no array's contents."""


class HostEnded(KeyboardInterrupt):
    """The backend's process has ended, or was ended because it did not answer.

    It is a KeyboardInterrupt, so that only the judging of a case catches it, and no guard against a backend's errors.
    """

    def __init__(self, reason: Reason, words: str, left: list[str]) -> None:
        super().__init__(words)
        self.reason, self.words, self.left = reason, words, left


class PipelineFailed(KeyboardInterrupt):
    """A pipelined step failed: the checks since then run again, waiting for every answer."""


class Host:
    """A backend's process, with the requests that wait for it.

    ``allowed`` is the time limit of a check in seconds. ``adopted`` means that this process has no other children.
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
        """Return the backend's declarations; :class:`BackendError` if it cannot be used."""
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
        """Start the time of a check."""
        self.clock.reset()

    def close(self) -> list[str]:
        """End the process and its descendants; return those that it left running."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._queue.clear()
            self._large.clear()
            self.left += self.process.end(adopted=self.adopted)
        return self.left

    def _ended(self, reason: Reason, words: str) -> HostEnded:
        # A process that ended by itself needs time to report its exit status before it is killed.
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
        """Return the handle of an array that will be converted before the next request."""
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
        """Return the result of a step on an array; ``like`` predicts its shape with NumPy.

        The step is pipelined if such a step has succeeded before.
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
        """Change an array; the change is pipelined if such a change has succeeded before."""
        key = what, type(x), *map(type, given)
        if self.patient or key not in self._known:
            self.ask(what, x, *given)
            self._known[key] = type(x)
        else:
            self._later(what, x, given, None)

    def library(self, x: RemoteArray) -> Mapping[str, Any]:
        """Return the layout functions that the array's library has."""
        if type(x) not in self._libraries:
            found = {**self.ask("functions", x)}
            if "broadcast_to" in found:
                found["broadcast_to"] = partial(self._broadcast, found["broadcast_to"])
            self._libraries[type(x)] = found
        return self._libraries[type(x)]

    def _broadcast(self, function: Any, x: RemoteArray, shape: tuple[int, ...]) -> Any:
        return self.view("apply", x, (function, shape), lambda x: np.broadcast_to(x, shape))

    def _later(self, what: str, x: RemoteArray, given: Any, shape: tuple[int, ...] | None) -> int:
        """Queue a step for the next request; return the number of its result."""
        self._number += 2
        self._queue.append(pickle.dumps((self._number, shape, what, x, *given), 5))
        self.changes += 1
        return self._number

    def forget(self, number: int) -> None:
        """Queue the release of an object for the next request."""
        if self._socket.fileno() >= 0:
            self._queue.append(number)

    def ask(self, what: str, *given: Any) -> Any:
        """Run a request and return its result; an exception that it raises is raised here."""
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
                    raise MalformedReply("an error of a step that was waited for")
                self.patient = True
                raise PipelineFailed
            error = as_told(found)
        except (MalformedReply, ValueError, TypeError) as breach:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({breach})") from None
        if letter == "u":
            self.eager = False
            if what != "converted":
                raise Violation(f"from_numpy raised {Raised(error).message}", reason=Reason.RAISED)
        raise error

    def read(self, x: RemoteArray) -> Any:
        """Return the contents of an array.

        The next arrays are read ahead; results of the backend only if they are read in sequence.
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
        except (MalformedReply, ValueError, TypeError) as breach:
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
        """Return the JSON and the bytes of an answer."""
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
                raise MalformedReply("no frame")
        except MalformedReply as breach:
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
    """Return the kind of a step: some libraries can slice arrays, but not with negative steps."""
    if isinstance(given, tuple):
        return tuple(map(_manner, given))
    if isinstance(given, slice):
        return slice, given.step is not None and given.step < 0
    return given if isinstance(given, str) else type(given)


def seen(reader: Reader, found: Any) -> tuple[Any, BaseException | None]:
    """Return the contents sent for an array, or the exception of its conversion."""
    letter, value = found
    return (reader.value(value), None) if letter == "v" else (None, as_told(value))
