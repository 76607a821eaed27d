"""The judge's end of the connection to a backend's process: requests, answers, time limit.

Conversions of arrays and steps on them are queued and sent with the next request, which saves most round trips.
"""

import marshal
import os
import pickle
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from attnspec.conformance.judging.foreign_calls import Raised, printable
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.remote.arrays import ABSENT, RemoteArray, handle_class
from attnspec.conformance.remote.clock import COMPILING, INTERVAL, Clock, Deadline, FirstCall, Watch
from attnspec.conformance.remote.command import CLOSING_SECONDS, PREFIX, late_line
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.raised import MalformedReply, exception_from_json
from attnspec.conformance.remote.sandbox import files_of, launch
from attnspec.conformance.remote.wire import LENGTHS, MAX_BYTES, MAX_TEXT, Reader, dtype_text, header
from attnspec.spec.contract.tree import flatten

MAX_QUEUED, MAX_QUEUED_BYTES = 512, 1 << 22
"""Most arrays, and bytes of arrays, in the queue."""

ANSWER_KINDS = ("r", "e", "u", "l", "x", "h")
"""Answers: result, exception, failed conversion, failed pipelined step, no backend, declarations."""

LARGE = 1 << 14
"""Bytes from which an array is sent after the request, without a copy."""

CALLS = {"operation", "in_thread", "call"}
"""Requests that call the backend's functions."""

READ_AHEAD = 16
"""Arrays that are read ahead with one request."""

EMPTY_QUEUE = marshal.dumps([])

TIMEOUT = struct.pack("ll", 0, int(INTERVAL * 1e6))
"""Interval between two looks at the clock, as a socket option, which saves system calls."""

ZERO = bytes(1)

UNPREDICTABLE = (TypeError, IndexError, AttributeError, ValueError)
"""Exceptions of NumPy for a step whose shape it cannot predict."""

READ_ONLY_REQUESTS = {"read", "read_on", "converted", "attribute", "array"}
"""Requests after which all contents that were read are still valid."""


class HostEnded(KeyboardInterrupt):
    """The backend's process has ended, or was ended because it did not answer.

    It is a KeyboardInterrupt, so that code which catches a backend's exceptions lets it pass. ``hung_after``: the time
    limit in seconds that it exceeded, or None.
    """

    def __init__(self, reason: Reason, description: str, left: list[str], hung_after: float | None) -> None:
        super().__init__(description)
        self.reason, self.description, self.left, self.hung_after = reason, description, left, hung_after


class Redeclared(KeyboardInterrupt):
    """A program was started anew, and declares something else: the run cannot be used."""

    @property
    def description(self) -> str:
        """Description of the end, for messages."""
        return f"ended: {self}"


class PipelineFailed(KeyboardInterrupt):
    """A pipelined step failed: the work is repeated, and now waits for every answer."""


class HostProcess:
    """A backend's process, with the queue for its next request.

    ``allowed`` is the time limit of a check in seconds. With ``ends_children``, closing ends all children of the
    judge's process. ``defers_conversions`` holds until a conversion fails: afterwards each is requested at once, so
    that it raises its own exception. ``waits_for_steps`` holds once a pipelined step has failed.
    """

    def __init__(
        self,
        name: str,
        device: str,
        *,
        allowed: float,
        path: list[str] | None = None,
        ends_children: bool = False,
        sandbox: bool = False,
    ) -> None:
        self.name, self.ends_children = name, ends_children
        self.clock = Clock(allowed)
        self.changes = 0
        self.left: list[str] = []
        self.shapes_are_expensive = False
        self.report_compiling: Callable[[str], None] = lambda what: None
        self._called: set[Any] = set()
        self.defers_conversions, self.waits_for_steps = True, False
        # By kind of step, once one has succeeded: the class of a pipelined step's result.
        self._result_classes: dict[Any, type[RemoteArray]] = {}
        self._library_functions: dict[type, Mapping[str, Any]] = {}
        self._queue: list[Any] = []
        self._large: list[np.ndarray[Any, Any]] = []
        self._queued_bytes, self._number = 0, 0  # even numbers are assigned here, odd ones by the backend's process
        self._read_ahead: dict[int, Any] = {}
        self._changes_at_read_ahead, self._last_read = -1, -1
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

    def await_description(self, seconds: float) -> Mapping[str, Any]:
        """Return the backend's declarations; :class:`BackendError` if it cannot be used."""
        try:
            answer = self._receive(Deadline(seconds))
        except HostEnded as end:
            slow = late_line(self.name, seconds) or f"expected its import to end within {seconds:g} s; it did not"
            ending = slow if end.reason is Reason.HUNG else f"its import {end.description}"
            raise BackendError(f"backend {self.name!r}: {ending}") from None
        letter, description = answer[0]
        if letter == "x" or not isinstance(description, dict):
            self.close()
            raise BackendError(printable(str(description)))
        return description

    def start_case(self) -> None:
        """Forget the shapes of earlier calls: another dtype may be compiled for them."""
        self._called.clear()

    def start_check(self) -> None:
        """Start the clock of a check."""
        self.clock.reset()

    def close(self, *, hung: bool = False) -> list[str]:
        """End the process and its descendants; return the titles of those left running."""
        if self._socket.fileno() >= 0:
            has_program = self.name.startswith(PREFIX)
            if has_program and not hung:
                self._await_end_of_program()
            self._socket.close()
            self._queue.clear()
            self._large.clear()
            self.left += self.process.end(ends_children=self.ends_children, has_program=has_program)
        return self.left

    def _await_end_of_program(self) -> None:
        """Wait until the backend's process has ended its program and closed the socket."""
        deadline = time.monotonic() + 2 * CLOSING_SECONDS
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        while time.monotonic() < deadline:
            try:
                if not self._socket.recv(LARGE):
                    break
            except BlockingIOError:
                continue
            except OSError:
                break

    def _ended(self, reason: Reason, description: str, hung_after: float | None = None) -> HostEnded:
        # Killed too early, a process that is ending by itself would lose its exit status.
        if reason is Reason.CRASHED:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
            if self.process.poll() is not None:
                description = f"ended the process {self.process.ending}"
        return HostEnded(reason, description, self.close(hung=reason is Reason.HUNG), hung_after)

    def _watch(self, clock: Clock) -> Watch:
        return Watch(self.process.pid, clock, self._hung)

    def _hung(self, seconds: float) -> NoReturn:
        raise self._ended(Reason.HUNG, f"did not answer within {seconds:g} s", seconds)

    # Requests ----------------------------------------------------------------------------------------------------

    def queue_array(self, x: "np.ndarray[Any, Any]", kind: type[RemoteArray]) -> RemoteArray:
        """Queue an array for conversion; return its handle."""
        dtype = dtype_text(x.dtype)
        plain = dtype is not None and x.flags.c_contiguous
        self._number += 2
        if not plain:
            self._queue.append((self._number, pickle.dumps(x, 5)))
        elif x.nbytes < LARGE:
            self._queue.append((self._number, dtype, x.shape, x.tobytes()))
        else:
            self._queue.append((self._number, dtype, x.shape, x.nbytes))
            self._large.append(x)
        self._queued_bytes += x.nbytes
        self.changes += 1
        handle = kind(self, self._number, x.shape)
        if not self.defers_conversions or len(self._queue) > MAX_QUEUED or self._queued_bytes > MAX_QUEUED_BYTES:
            self.ask("converted", handle)
        return handle

    def view(self, request: str, x: RemoteArray, args: Any, predict: Callable[["np.ndarray[Any, Any]"], Any]) -> Any:
        """Return the result of a step on an array.

        It is pipelined if a step of its kind has succeeded before, with the shape that ``predict`` finds with NumPy.
        """
        try:
            # An array of this shape whose elements share one byte: even a large one takes no memory.
            shape = predict(np.ndarray(x.shape, np.uint8, ZERO, 0, (0,) * x.ndim)).shape
        except UNPREDICTABLE:
            return self.ask(request, x, *args)
        key = request, type(x), _step_kind(args)
        if self.waits_for_steps or key not in self._result_classes:
            result = self.ask(request, x, *args)
            if issubclass(type(result), RemoteArray) and result.shape == shape:
                self._result_classes[key] = type(result)
            return result
        return self._result_classes[key](self, self._queue_step(request, x, args, shape), shape)

    def change(self, request: str, x: RemoteArray, *args: Any) -> None:
        """Change an array; the change is pipelined if one of its kind has succeeded before."""
        key = request, type(x), *map(type, args)
        if self.waits_for_steps or key not in self._result_classes:
            self.ask(request, x, *args)
            self._result_classes[key] = type(x)
        else:
            self._queue_step(request, x, args, None)

    def library(self, x: RemoteArray) -> Mapping[str, Any]:
        """Return the layout functions that the array's library has."""
        if type(x) not in self._library_functions:
            functions = {**self.ask("functions", x)}
            if "broadcast_to" in functions:
                functions["broadcast_to"] = partial(self._broadcast, functions["broadcast_to"])
            self._library_functions[type(x)] = functions
        return self._library_functions[type(x)]

    def _broadcast(self, function: Any, x: RemoteArray, shape: tuple[int, ...]) -> Any:
        return self.view("apply", x, (function, shape), lambda x: np.broadcast_to(x, shape))

    def _queue_step(self, request: str, x: RemoteArray, args: Any, shape: tuple[int, ...] | None) -> int:
        """Queue a step for the next request; return the number of its result."""
        self._number += 2
        self._queue.append(pickle.dumps((self._number, shape, request, x, *args), 5))
        self.changes += 1
        return self._number

    def release(self, number: int) -> None:
        """Queue the release of an object for the next request."""
        if self._socket.fileno() >= 0:
            self._queue.append(number)

    def ask(self, request: str, *args: Any) -> Any:
        """Run a request and return its result; an exception that it raises is raised here."""
        message = pickle.dumps((request, *args), 5)
        queue, large = EMPTY_QUEUE, self._large
        if self._queue:
            queue = marshal.dumps(self._queue)
            self._queue, self._large, self._queued_bytes = [], [], 0
        if request not in READ_ONLY_REQUESTS:
            self.changes += 1
        self._send(LENGTHS.pack(len(queue), len(message)) + queue + message)
        for x in large:
            self._send(x.reshape(-1).view(np.uint8))
        clock = self._clock_of(request, args)
        (letter, answer), payload = self._receive(clock)
        if clock is not self.clock:
            self.report_compiling("")
        if letter == "x":
            self.close()
            raise Redeclared(printable(str(answer)))
        try:
            reader = Reader(payload, lambda *details: self._handle(reader, *details))
            if letter == "r":
                if request == "read_on":
                    # The requested contents come first; the others, with their numbers, are read ahead.
                    self._read_ahead = {number: (reader, content) for number, content in answer[1:]}
                    answer, self._changes_at_read_ahead = answer[0], self.changes
                if request not in ("read", "read_on"):
                    return reader.value(answer)
                # Contents have letters of their own: v with a value, e with the exception of the conversion.
                letter, answer = answer
                if letter == "v":
                    return reader.value(answer)
            if letter == "l":
                if self.waits_for_steps:
                    raise MalformedReply("expected no failed step, since no step was pipelined")
                self.waits_for_steps = True
                raise PipelineFailed
            error = exception_from_json(answer)
        except (MalformedReply, ValueError, TypeError) as malformed:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({malformed})") from None
        if letter == "u":
            self.defers_conversions = False
            if request != "converted":
                # The same violation as if ``from_numpy`` had raised before it returned a handle.
                raise Violation(f"from_numpy raised {Raised(error).message}", reason=Reason.RAISED)
        raise error

    def _clock_of(self, request: str, args: Any) -> Clock:
        """Return the clock of the check; for new shapes, a clock of their own."""
        if request not in CALLS:
            return self.clock
        function, positional, keyword = args
        name = function if isinstance(function, str) else "a backward pass"
        passed = flatten({**dict(enumerate(positional)), **keyword}).items()
        key = name, *((path, getattr(x, "shape", x if isinstance(x, bool | str) else None)) for path, x in passed)
        if key in self._called:
            return self.clock
        self._called.add(key)
        times = COMPILING if self.shapes_are_expensive else 1
        return FirstCall(times * self.clock.allowed, partial(self.report_compiling, name))

    def read(self, x: RemoteArray) -> Any:
        """Return the contents of an array: sent with its handle, read ahead, or requested now.

        The first two are valid while ``changes`` stays the same: any call or step may write to any array. A request
        also reads the next arrays ahead, since laws tend to read in order. Results (odd numbers) are numbered among
        the backend's other objects: they are read ahead only if the previous odd number was the last one read.
        """
        number = x._number
        content = x.pop_content()
        if content is ABSENT and self._changes_at_read_ahead == self.changes:
            content = self._read_ahead.pop(number, ABSENT)
        alone, self._last_read = number % 2 and number != self._last_read + 2, number
        if content is ABSENT:
            return self.ask("read", x) if alone else self.ask("read_on", x, number, READ_AHEAD)
        try:
            reader, (letter, sent) = content
            value = reader.value(sent) if letter == "v" else exception_from_json(sent)
        except (MalformedReply, ValueError, TypeError) as malformed:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({malformed})") from None
        if letter != "v":
            raise value
        return value

    def _handle(self, reader: Reader, letter: str, number: int, details: list[Any]) -> Any:
        if letter != "a":
            return handle_class(letter, details[0])(self, number)
        shape, numpy, name, content = details
        read = ABSENT if content is None else (reader, content)
        return handle_class("n" if numpy else "a", name)(self, number, tuple(map(int, shape)), read)

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

    def _receive(self, clock: Clock) -> tuple[Any, Any]:
        """Return the JSON and the bytes of an answer."""
        watch = self._watch(clock)
        count = self._fill(memoryview(self._buffer), 0, LENGTHS.size, watch)
        text, bytes_ = LENGTHS.unpack_from(self._buffer)
        if text > MAX_TEXT or bytes_ > MAX_BYTES:
            raise self._ended(Reason.CRASHED, "sent a malformed reply (too many bytes)")
        whole = LENGTHS.size + text + bytes_
        buffer = np.empty(whole, np.uint8).data
        have = min(count, whole)
        buffer[:have] = memoryview(self._buffer)[:have]
        self._fill(buffer, have, whole, watch)
        middle = LENGTHS.size + text
        try:
            answer = header(buffer[LENGTHS.size : middle])
            if count > whole or not isinstance(answer, list) or len(answer) != 2 or answer[0] not in ANSWER_KINDS:
                raise MalformedReply("expected a kind of answer and its value")
        except MalformedReply as malformed:
            raise self._ended(Reason.CRASHED, f"sent a malformed reply ({malformed})") from None
        return answer, buffer[middle:]

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


def _step_kind(args: Any) -> Any:
    """Return a step's kind: its texts, types, and negative slices, which some libraries lack."""
    if isinstance(args, tuple):
        return tuple(map(_step_kind, args))
    if isinstance(args, slice):
        return slice, args.step is not None and args.step < 0
    return args if isinstance(args, str) else type(args)
