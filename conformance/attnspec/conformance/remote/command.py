"""Backends in any language: a program that answers calls on its standard input and output.

A message is a line of JSON, followed by the bytes of its arrays. ``docs/commands.md`` describes both directions.
"""

import json
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.foreign_calls import ending
from attnspec.conformance.remote.errors import BackendError
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.tree import build_tree, flatten

PREFIX = "command:"
"""Prefix of a backend's name that is followed by a command."""

VERSION = 1
"""Version of the protocol."""

ATTRIBUTES = ("limits", "semantics", "precision", "notes")
"""Attributes of a backend that a program may declare."""

KEYS = ("attnspec", "name", "operations", "vjp", *ATTRIBUTES)
"""Keys of a declaration."""

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "bool")
"""Dtypes of arrays in messages."""

EXCEPTIONS = {e.__name__: e for e in (ValueError, TypeError, IndexError, NotImplementedError, MemoryError)}
"""Exceptions that a program may name; any other becomes a ``RuntimeError``."""

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError, RecursionError)
"""Exceptions from lines that are not JSON, are misstructured, or describe impossible arrays."""

LONGEST = 2**20
"""Largest number of bytes in a line. A longer one is malformed, since a program may write without end."""

LARGEST = 2**28
"""Largest number of bytes of an answer's arrays; the laws expect far fewer. They are allocated before they are read."""

SHOWN = 200
"""Largest number of bytes that a message shows of a malformed line."""

CLOSING_SECONDS = 1.0
"""Seconds that a program has to end once its input or output is closed."""

STALLED_SECONDS = 0.5
"""Seconds without a byte of an answer after which the program's input is closed."""


def words(command: str) -> list[str]:
    """Return the words of a command; none if it cannot be parsed."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def late_line(name: str, seconds: float) -> str:
    """Return the error of a program without a first line; empty for other backends."""
    question = "does the program end its first line, and flush its output?"
    return f"expected a first line within {seconds:g} s; got none: {question}" if name.startswith(PREFIX) else ""


class CommandBackend:
    """The backend that a program declares.

    If the program ends during a call, so does this process, in the same way.
    """

    place_of_attributes = "into the first line that the program writes, as JSON"

    def __init__(self, command: str) -> None:
        self._command = command
        self._declared = declared = self._start()
        if unknown := [key for key in declared if key not in KEYS]:
            self._refuse(f"expected only the keys {', '.join(KEYS)} in its first line; got {unknown[0]!r}")
        if not isinstance(declared.get("vjp", False), bool):
            self._refuse(f"vjp: expected true or false in its first line; got {declared['vjp']!r}")
        self.name = declared["name"]
        for attribute in ATTRIBUTES:
            setattr(self, attribute, declared.get(attribute))
        for name in declared["operations"]:
            if name not in OPERATIONS:
                self._refuse(f"operations: expected names that 'attnspec list operations' prints; got {name!r}")
            setattr(self, name, partial(self._call, OPERATIONS[name]))
        if not declared["operations"]:
            self._refuse(f"expected operations such as {', '.join([*OPERATIONS][:3])}, … in its first line; got none")
        if declared.get("vjp"):
            self.vjp = self._vjp

    def close(self) -> None:
        """Close the program's input and output, and end it if necessary."""
        with suppress(BrokenPipeError):
            _stream(self._process.stdin).close()
        _stream(self._process.stdout).close()
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _refuse(self, message: str) -> NoReturn:
        raise BackendError(f"backend {PREFIX + self._command!r}: {message}")

    def _start(self) -> dict[str, Any]:
        """Start the program and return its declaration, which is its first line."""
        try:
            command = shlex.split(self._command)
            if not command:
                raise ValueError("an empty command")
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except (OSError, ValueError) as error:
            kind = f"{type(error).__name__}: " if isinstance(error, OSError) else ""
            hint = f": write ./{self._command}" if _is_local(self._command, error) else ""
            self._refuse(f"expected a command that starts; got {kind}{error}{hint}")
        line = _stream(self._process.stdout).readline(LONGEST)
        try:
            declared = json.loads(line)
            name, operations = declared["name"], declared["operations"]
            if type(declared["attnspec"]) is not int or declared["attnspec"] != VERSION:
                raise ValueError
            if not isinstance(operations, list) or not all(isinstance(text, str) for text in (name, *operations)):
                raise ValueError
        except MALFORMED:
            end = "" if line.endswith(b"\n") or len(line) == LONGEST else f"; the program {self._ending()}"
            self.close()
            example = json.dumps({"attnspec": VERSION, "name": "mine", "operations": ["softmax"]})
            self._refuse(f"expected a first line such as {example}; got {line[:SHOWN]!r}{end}")
        return dict(declared)

    def _ending(self) -> str:
        """Return how the program ended, after its output did."""
        try:
            status = self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its output"
        return f"ended {ending(status)}: run it by hand to read its errors"

    def _call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        known = [leaf.path for leaf in operation.outputs]
        result = self._answer({"call": operation.name}, known, arguments=_by_path(operation, args, kwargs))
        return build_tree(operation.result, lambda leaf: result.get(leaf.path), lambda branch: 0)

    def _vjp(self, name: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        operation = OPERATIONS[name]
        paths = [leaf.path for leaf in operation.outputs]
        cotangents = dict(zip(paths, flatten(cotangent).values(), strict=True))
        by_path = _by_path(operation, (), arguments)
        return self._answer({"vjp": name}, [*by_path], arguments=by_path, cotangents=cotangents)

    def _answer(self, request: dict[str, Any], known: list[str], **values_by_path: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the values of the answer by path, one of ``known``."""
        if closed := _stream(self._process.stdin).closed:
            self.close()
        if closed or self._process.poll() is not None:
            declared = self._start()
            first = self._declared
            for key in [key for key in {**first, **declared} if first.get(key) != declared.get(key)]:
                expected = f"expected what its first start declared, {first.get(key)!r}"
                self._refuse(f"{key}: {expected}; got {declared.get(key)!r}")
        self._demand_silence()
        arrays: list[np.ndarray[Any, Any]] = []
        parts = {
            key: {path: _as_json(x, arrays) for path, x in values.items()} for key, values in values_by_path.items()
        }
        line = json.dumps({**request, **parts}, separators=(",", ":")).encode()
        to_program, from_program = _stream(self._process.stdin), _stream(self._process.stdout)
        try:
            to_program.write(b"".join([line, b"\n", *(x.tobytes() for x in arrays)]))
            to_program.flush()
        except BrokenPipeError:
            self._end_like_program("expected the program to read requests; it closed its input")
        line = from_program.readline(LONGEST)
        if not line.endswith(b"\n") and len(line) < LONGEST:
            self._end_like_program("expected an answer; the program closed its output")
        try:
            answer = json.loads(line)
            raised, result = answer.get("error"), {} if answer.get("error") else dict(answer["result"])
            if not isinstance(raised, str | None):
                raise TypeError
            described = {path: _described(x) for path, x in result.items() if isinstance(x, dict)}
        except MALFORMED:
            self._fail(f'expected an answer such as {{"result":{{"result":{{…}}}}}}; got {line[:SHOWN]!r}')
        if unknown := [path for path in result if path not in known]:
            self._fail(f"expected results named {', '.join(known)}; got {unknown[0]!r}")
        size = sum(prod(shape) * dtype.itemsize for dtype, shape in described.values())
        if size > LARGEST:
            self._fail(f"expected arrays of at most {LARGEST} bytes; got {line[:SHOWN]!r}, which are {size}")
        result |= {path: self._read(path, *x) for path, x in described.items()}
        self._demand_silence()
        if raised:
            raise EXCEPTIONS.get(raised, RuntimeError)(str(answer.get("message", "")))
        return result

    def _read(self, path: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
        """Read the bytes of an array.

        If none comes, the input of the program is closed: a slow one goes on, one that waits for the next request ends.
        """
        numbers, output = bytearray(prod(shape) * dtype.itemsize), _stream(self._process.stdout)
        count, view = 0, memoryview(numbers)
        while count < len(numbers):
            if not self._waiting() and not select.select([output], [], [], STALLED_SECONDS)[0]:
                _stream(self._process.stdin).close()
            part = output.readinto1(view[count:])
            count += part
            if not part:
                message = f"{path}: expected {len(numbers)} bytes from the program; got {count}"
                if _stream(self._process.stdin).closed:
                    self._fail(message)
                self._end_like_program(f"{message}, then it closed its output")
        return np.frombuffer(numbers, dtype).reshape(shape)

    def _waiting(self) -> bytes:
        """Return bytes that the program has written, without waiting; they stay unread."""
        output = _stream(self._process.stdout)
        os.set_blocking(output.fileno(), False)
        try:
            return bytes(output.peek(1))
        finally:
            os.set_blocking(output.fileno(), True)

    def _demand_silence(self) -> None:
        """Raise ``RuntimeError`` if the program has written more than its answers."""
        if waiting := self._waiting():
            self._fail(f"expected nothing but answers from the program; got, unasked, {waiting[:SHOWN]!r}")

    def _fail(self, message: str) -> NoReturn:
        """Raise ``RuntimeError``; the next call starts the program anew, since its next answer may begin anywhere."""
        self.close()
        raise RuntimeError(message)

    def _end_like_program(self, message: str) -> NoReturn:
        """End this process with the program's status or signal, so that the judge reports it.

        If the program does not end, raise ``RuntimeError``.
        """
        try:
            status = self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._fail(message)
        if status < 0:
            with suppress(OSError):  # some signals have no handlers, SIGKILL for one
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(max(status, 0))


def _stream(pipe: IO[bytes] | None) -> Any:
    assert pipe is not None
    return pipe


def _by_path(operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by path, in the order of the signature."""
    bound = operation.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    options = {option.path for option in operation.options}
    by_path: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        by_path |= {name: value} if name in options else flatten(value, name)
    return by_path


def _as_json(x: Any, arrays: list["np.ndarray[Any, Any]"]) -> Any:
    """Return a value as JSON; append an array to ``arrays`` and describe it."""
    if not isinstance(x, np.ndarray | np.generic):
        return x
    arrays.append(np.asarray(x))
    return {"dtype": x.dtype.name, "shape": x.shape}


def _described(x: Mapping[str, Any]) -> tuple["np.dtype[Any]", tuple[int, ...]]:
    """Return dtype and shape of an array in an answer; one of :data:`MALFORMED` for another description."""
    dtype, shape = x["dtype"], x["shape"]
    if dtype not in DTYPES or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError
    np.broadcast_to(np.zeros((), np.uint8), shape)  # raises for more dimensions, or larger ones, than NumPy has
    return numpy_dtype(dtype), tuple(shape)


def _is_local(command: str, error: Exception) -> bool:
    """Return whether a command that was not found is a file of the current folder."""
    return isinstance(error, FileNotFoundError) and "/" not in command and Path(*words(command)[:1]).is_file()
