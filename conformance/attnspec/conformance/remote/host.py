"""The process of a backend: it imports the backend and answers requests to call it.

``python -m attnspec.conformance.remote.host SOCKET NAME DEVICE`` answers requests on the file descriptor SOCKET until
it is closed. It imports neither reference nor laws, so that a backend finds no expected results in its process.
"""

import gc
import marshal
import os
import pickle
import signal
import socket
import sys
import time
from typing import Any

import numpy as np

from attnspec.conformance.inputs import layouts
from attnspec.conformance.judging.foreign_calls import call_safely, in_thread, placed
from attnspec.conformance.remote.command import CLOSING_SECONDS, CommandBackend
from attnspec.conformance.remote.description import describe, described, runs_on
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.objects import OBJECTS, Unconverted
from attnspec.conformance.remote.processes import die_with_parent
from attnspec.conformance.remote.raised import exception_as_json
from attnspec.conformance.remote.wire import LENGTHS, Writer, dtype_named, is_small

FUNCTIONS = ("broadcast_to", "empty", "_neg_view")
"""Functions of an array library that memory layouts need."""

OPTIONAL = ("from_numpy", "to_numpy", "vjp", "pullback", "modes", "free_memory")
"""Optional attributes of a backend that the judge may request."""

TIMERS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}
"""Signals of timers that a backend may set: blocked between its calls, where they would interrupt messages."""


class RequestHandler:
    """Requests to one backend: each method but ``prepare`` answers the request of its name; ``answer`` the others."""

    def __init__(self, backend: Any, device: str) -> None:
        self.backend, self.device, self.step_failed = backend, device, False
        self.from_numpy, self.to_numpy = (getattr(backend, name, None) for name in ("from_numpy", "to_numpy"))

    # The queue, which has no answers -----------------------------------------------------------------------------

    def prepare(self, queue: list[Any]) -> None:
        """Process the queue in order: numbers of objects to release, pickled steps, arrays to convert.

        ``step_failed`` is set if a step raises, or if its result has another shape than the judge assumed.
        """
        objects = OBJECTS.objects
        for entry in queue:
            if type(entry) is int:
                objects.pop(entry, None)
            elif type(entry) is bytes:
                self._step(entry)
            else:
                number, *plain = entry
                objects[number] = self._converted(_array(*plain))

    def _step(self, entry: bytes) -> None:
        try:
            number, shape, what, *args = pickle.loads(entry)
            OBJECTS.objects[number] = result = getattr(self, what)(*args)
            self.step_failed = self.step_failed or (shape is not None and tuple(result.shape) != shape)
        except BaseException:  # noqa: BLE001 - a backend's code may raise anything
            self.step_failed = True

    def _converted(self, x: Any) -> Any:
        if self.from_numpy is None:
            return x
        try:
            return self.from_numpy(x, device=self.device)
        except BaseException as error:  # noqa: BLE001 - a backend's code may raise anything
            return Unconverted(error)

    # Requests ----------------------------------------------------------------------------------------------------

    def operation(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of the backend."""
        return placed(self.backend, name, self.device)(*args, **kwargs)

    def in_thread(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of the backend in a new thread."""
        return in_thread(placed(self.backend, name, self.device), *args, **kwargs)

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function that the backend has returned."""
        return function(*args, **kwargs)

    def apply(self, x: Any, function: Any, shape: tuple[int, ...]) -> Any:
        """Call a library function that gives an array another shape."""
        return function(x, shape)

    def enter(self, context: Any) -> Any:
        """Enter a context of the backend."""
        return context.__enter__()

    def exit(self, context: Any, raised: bool) -> bool:
        """Leave a context of the backend."""
        error = RuntimeError("raised within the context") if raised else None
        return bool(context.__exit__(error and type(error), error, None))

    def item(self, x: Any, key: Any) -> Any:
        """Return a part of an array."""
        return x[key]

    def write(self, x: Any, key: Any, value: Any) -> None:
        """Write to an array."""
        x[key] = value

    def method(self, x: Any, name: str, args: Any) -> Any:
        """Call a method of an array."""
        return getattr(x, name)(*args)

    def functions(self, x: Any) -> Any:
        """Return the layout functions that the array's library has."""
        module = layouts._namespace(x)
        return {name: getattr(module, name) for name in FUNCTIONS if hasattr(module, name)}

    def converted(self, x: Any) -> bool:
        """Return true; if the array's conversion failed, unpickling the request has raised."""
        return True

    def flag(self, x: Any, name: str, value: bool) -> None:
        """Set a flag of a NumPy array."""
        setattr(x.flags, name, value)


WITH_CONTENTS = {"operation", "in_thread", "call"}
"""Requests whose answers include the contents of result arrays, which the judge reads next."""


def answer(host: RequestHandler, queue: list[Any], request: bytes) -> bytearray:
    """Process the queue, run the request, return the frame of the answer; for its letters see ``ANSWER_KINDS``."""
    writer = Writer(OBJECTS.keep)
    try:
        host.prepare(queue)
        if host.step_failed:
            host.step_failed = False
            return writer.frame(["l", None])
        what, *args = pickle.loads(request)
        if what in WITH_CONTENTS:
            writer.read = host.to_numpy or (lambda x: x)
        if what == "read":
            writer.read = host.to_numpy
            result = writer.content(*args)
        elif what == "read_on":
            writer.read = host.to_numpy
            result = [writer.content(args[0]), *read_on(writer, *args[1:])]
        elif what == "array":
            result = writer.array(np.asarray(*args))
        elif what == "attribute":
            # Sent as a handle whatever its type, such as a dtype.
            x = getattr(*args)
            result = ["o", writer.keep(x), type(x).__name__]
        else:
            result = writer.value(getattr(host, what)(*args))
        return writer.frame(["r", result])
    except BackendError as error:
        return Writer(OBJECTS.keep).frame(["x", str(error)])  # a program that was started anew declares something else
    except Unconverted as error:
        return Writer(OBJECTS.keep).frame(["u", exception_as_json(error.error)])
    except BaseException as error:  # noqa: BLE001 - a backend's code may raise anything
        return Writer(OBJECTS.keep).frame(["e", exception_as_json(error)])


def read_on(writer: Writer, number: int, count: int) -> list[Any]:
    """Return the contents of the arrays that follow ``number``, each with its number."""
    following = {n: OBJECTS.objects.get(n) for n in range(number + 2, number + 2 * count + 2, 2)}
    return [[n, writer.content(x)] for n, x in following.items() if is_small(x)]


def _array(text: Any, shape: Any = None, numbers: Any = b"") -> Any:
    """Return a NumPy array from what was sent: dtype, shape and bytes, or a pickle."""
    if shape is None:
        return pickle.loads(text)
    return np.ndarray(shape, dtype_named(text), bytearray(numbers) if type(numbers) is bytes else numbers)


class Channel:
    """The socket to the judge, as queues, requests and answers."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = bytearray(1 << 16)

    def receive(self) -> tuple[list[Any], bytes]:
        """Wait for a queue and its request; ``EOFError`` if the socket is closed."""
        count = self._fill(self._buffer, 0, LENGTHS.size)
        lengths = LENGTHS.unpack_from(self._buffer)
        whole, buffer = LENGTHS.size + sum(lengths), self._buffer
        if whole > len(buffer):
            buffer = bytearray(whole)
            buffer[:count] = self._buffer[:count]
        count = self._fill(buffer, count, whole)
        middle = LENGTHS.size + lengths[0]
        queue, excess = marshal.loads(memoryview(buffer)[LENGTHS.size : middle]), memoryview(buffer)[whole:count]
        # An array of which only the size is queued follows the request; its first bytes may have come with it.
        for i, entry in enumerate(queue):
            if type(entry) is tuple and type(entry[-1]) is int:
                *plain, size = entry
                numbers = np.empty(size, np.uint8).data
                filled = min(len(excess), size)
                numbers[:filled], excess = excess[:filled], excess[filled:]
                self._fill(numbers, filled, size)
                queue[i] = *plain, numbers
        return queue, bytes(buffer[middle:whole])

    def _fill(self, buffer: bytearray | memoryview, count: int, least: int) -> int:
        view = memoryview(buffer)
        while count < least:
            got = self.connection.recv_into(view[count:])
            if not got:
                raise EOFError
            count += got
        return count


def serve(channel: Channel, host: RequestHandler) -> None:
    """Answer requests until the socket is closed."""
    while True:
        queue, request = channel.receive()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TIMERS)
        try:
            frame = answer(host, queue, request)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, TIMERS)
        channel.connection.sendall(frame)


def _stays_numpy(backend: Any, device: str) -> bool:
    array = call_safely(lambda: backend.from_numpy(np.zeros(1, np.float32), device=device))
    return isinstance(array, np.ndarray)


def main() -> None:
    """Answer requests on the socket that the command line names."""
    number, name, device, path = sys.argv[1:5]
    die_with_parent()
    sys.path += [folder for folder in path.split(os.pathsep) if folder and folder not in sys.path]
    connection = socket.socket(fileno=int(number))
    connection.set_inheritable(False)
    # A forked copy of this process must not answer.
    os.register_at_fork(after_in_child=connection.close)
    process = os.getpid()
    try:
        backend = load(name)
        contract = contract_of(backend, name, device)
        device = contract.limits.chosen_device(device)
        # An undeclared device is not reported here: the judge's own message is better.
        description = describe(backend, name, device) if runs_on(contract, device) else described(contract)
        description["optional"] = [x for x in OPTIONAL if getattr(backend, x, None) is not None]
        description["numpy"] = "from_numpy" not in description["optional"] or _stays_numpy(backend, device)
    except BackendError as error:
        connection.sendall(Writer(OBJECTS.keep).frame(["x", str(error)]))
        os._exit(0)
    if os.getpid() != process:
        os._exit(0)  # this is a copy: the import has forked
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        connection.sendall(Writer(OBJECTS.keep).frame(["h", description]))
        serve(Channel(connection), RequestHandler(backend, device))
    finally:
        if isinstance(backend, CommandBackend):
            backend.close()
            connection.close()
            time.sleep(CLOSING_SECONDS)  # until then the judge lists what the program has left
        os._exit(0)


if __name__ == "__main__":
    main()
