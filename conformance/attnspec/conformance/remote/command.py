"""Backends in any language: a program that answers calls on its standard input and output.

A message is a line of JSON, followed by the bytes of its arrays. ``docs/commands.md`` describes both directions.
"""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import IO, Any, NoReturn

import numpy as np

from attnspec.conformance.inputs.dtypes import numpy_dtype
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

EXCEPTIONS = {e.__name__: e for e in (ValueError, TypeError, IndexError, NotImplementedError, MemoryError)}
"""Exceptions that a program may name; any other becomes a ``RuntimeError``."""

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError, RecursionError)
"""Exceptions from lines that are not JSON, are misstructured, or describe impossible arrays."""

LONGEST = 2**20
"""Largest number of bytes in a line. A longer one is malformed, since a program may write without end."""

SHOWN = 200
"""Largest number of bytes that a message shows of a malformed line."""


def words(command: str) -> list[str]:
    """Return the words of a command; none if it cannot be parsed."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


class CommandBackend:
    """The backend that a program declares.

    If the program ends during a call, so does this process, in the same way.
    """

    place_of_attributes = "into the first line that the program writes, as JSON"

    def __init__(self, command: str) -> None:
        self._command = command
        declared = self._start()
        if unknown := [key for key in declared if key not in KEYS]:
            self._refuse(f"expected only the keys {', '.join(KEYS)} in its first line; got {unknown[0]!r}")
        self.name = declared["name"]
        for attribute in ATTRIBUTES:
            setattr(self, attribute, declared.get(attribute))
        for name in declared["operations"]:
            if name not in OPERATIONS:
                self._refuse(f"operations: expected names that 'attnspec list operations' prints; got {name!r}")
            setattr(self, name, partial(self._call, OPERATIONS[name]))
        if declared.get("vjp"):
            self.vjp = self._vjp

    def close(self) -> None:
        """End the program."""
        with self._process:
            self._process.kill()

    def _refuse(self, message: str) -> NoReturn:
        raise BackendError(f"backend {PREFIX + self._command!r}: {message}")

    def _start(self) -> dict[str, Any]:
        """Start the program and return its declaration, which is its first line."""
        try:
            self._process = subprocess.Popen(
                words(self._command) or [self._command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self._refuse(f"expected a command that starts; got {type(error).__name__}: {error}")
        line = _stream(self._process.stdout).readline(LONGEST)
        try:
            declared = json.loads(line)
            if declared["attnspec"] != VERSION or not isinstance(declared["name"], str):
                raise ValueError
            return {**declared, "operations": [str(name) for name in declared["operations"]]}
        except MALFORMED:
            self.close()
            example = json.dumps({"attnspec": VERSION, "name": "mine", "operations": ["softmax"]})
            self._refuse(f"expected a first line such as {example}; got {line[:SHOWN]!r}")

    def _call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        result = self._answer({"call": operation.name}, arguments=_by_path(operation, args, kwargs))
        known = [leaf.path for leaf in operation.outputs]
        if unknown := [path for path in result if path not in known]:
            raise RuntimeError(f"expected results named {', '.join(known)}; got {unknown[0]!r}")
        return build_tree(operation.result, lambda leaf: result.get(leaf.path), lambda branch: 0)

    def _vjp(self, name: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        operation = OPERATIONS[name]
        paths = [leaf.path for leaf in operation.outputs]
        cotangents = dict(zip(paths, flatten(cotangent).values(), strict=True))
        return self._answer({"vjp": name}, arguments=_by_path(operation, (), arguments), cotangents=cotangents)

    def _answer(self, request: dict[str, Any], **values_by_path: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the values of the answer by path."""
        if self._process.poll() is not None:
            self._start()
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
            self._end_like_program()
        line = from_program.readline(LONGEST)
        if not line.endswith(b"\n") and len(line) < LONGEST:
            self._end_like_program()
        try:
            answer = json.loads(line)
            raised = answer.get("error")
            result = {} if raised else {path: self._value(x) for path, x in answer["result"].items()}
        except MALFORMED:
            self.close()  # where the next answer begins is unknown: the next call starts the program anew
            message = f'expected an answer such as {{"result":{{"result":{{…}}}}}}; got {line[:SHOWN]!r}'
            raise RuntimeError(message) from None
        if raised:
            raise EXCEPTIONS.get(str(raised), RuntimeError)(str(answer.get("message", "")))
        return result

    def _value(self, x: Any) -> Any:
        """Return a value of an answer; for an array, read its bytes."""
        if not isinstance(x, dict):
            return x
        dtype, shape = numpy_dtype(x["dtype"]), tuple(map(int, x["shape"]))
        numbers = bytearray(prod(shape) * dtype.itemsize)
        if _stream(self._process.stdout).readinto(numbers) < len(numbers):
            self._end_like_program()
        return np.frombuffer(numbers, dtype).reshape(shape)

    def _end_like_program(self) -> NoReturn:
        """End this process with the program's status or signal, so that the judge reports it."""
        status = self._process.wait()
        if status < 0:
            if -status != signal.SIGKILL:  # whose handler cannot be set
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
