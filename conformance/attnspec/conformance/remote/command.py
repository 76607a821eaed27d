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
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import build_tree, flatten

PREFIX = "command:"
"""Beginning of the names of such backends; the command follows."""

VERSION = 1
"""Version of the protocol."""

DECLARATIONS = ("limits", "semantics", "precision", "notes")
"""Attributes of a backend that a program may declare."""

EXCEPTIONS = {e.__name__: e for e in (ValueError, TypeError, IndexError, NotImplementedError, MemoryError)}
"""Exceptions that a program may name; any other becomes a ``RuntimeError``."""

SHOWN = 200
"""Most bytes of a malformed line in messages."""


class CommandBackend:
    """The backend that a program declares. If the program ends during a call, so does this process, in the same way."""

    place_of_attributes = "into the first line that the program writes, as JSON"

    def __init__(self, command: str) -> None:
        self._command = command
        declared = self._start()
        self.name = declared["name"]
        for attribute in DECLARATIONS:
            setattr(self, attribute, declared.get(attribute))
        for operation in declared["operations"]:
            if operation not in OPERATIONS:
                self._refuse(f"operations: expected names that 'attnspec list operations' prints; got {operation!r}")
            setattr(self, operation, partial(self._call, operation))
        if declared.get("gradients"):
            self.vjp = self._vjp

    def _refuse(self, message: str) -> NoReturn:
        raise BackendError(f"backend {PREFIX + self._command!r}: {message}")

    def _start(self) -> dict[str, Any]:
        """Start the program and return its declaration, which is its first line."""
        try:
            self._process = subprocess.Popen(
                shlex.split(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except (OSError, ValueError) as error:
            self._refuse(f"expected a command that starts; got {type(error).__name__}: {error}")
        line = _stream(self._process.stdout).readline()
        try:
            declared = json.loads(line)
            if declared["attnspec"] != VERSION or not isinstance(declared["name"], str):
                raise ValueError
            return {**declared, "operations": [str(name) for name in declared["operations"]]}
        except (ValueError, TypeError, KeyError):
            self.close()
            example = json.dumps({"attnspec": VERSION, "name": "mine", "operations": ["softmax"]})
            self._refuse(f"expected a first line such as {example}; got {line[:SHOWN]!r}")

    def close(self) -> None:
        """End the program."""
        with self._process:
            self._process.kill()

    def _call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        described = OPERATIONS[operation]
        bound = described.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        result = self._answer({"call": operation}, arguments=bound.arguments)
        return build_tree(described.result, lambda leaf: result.get(leaf.path), lambda branch: 0)

    def _vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        described = OPERATIONS[operation]
        paths = [leaf.path for leaf in described.outputs]
        cotangents = dict(zip(paths, flatten(cotangent).values(), strict=True))
        return self._answer({"vjp": operation}, arguments={**described.defaults, **arguments}, cotangents=cotangents)

    def _answer(self, request: dict[str, Any], **trees: Any) -> dict[str, Any]:
        """Send a request and return the values of the answer by path."""
        if self._process.poll() is not None:
            self._start()
        arrays: list[np.ndarray[Any, Any]] = []
        parts = {name: {path: _as_json(x, arrays) for path, x in flatten(tree).items()} for name, tree in trees.items()}
        line = json.dumps({**request, **parts}, separators=(",", ":")).encode()
        to_program, from_program = _stream(self._process.stdin), _stream(self._process.stdout)
        try:
            to_program.write(b"".join([line, b"\n", *(x.tobytes() for x in arrays)]))
            to_program.flush()
        except BrokenPipeError:
            self._end_alike()
        line = from_program.readline()
        if not line.endswith(b"\n"):
            self._end_alike()
        try:
            answer = json.loads(line)
            if "error" not in answer:
                return {path: self._value(x) for path, x in answer["result"].items()}
            raised, message = str(answer["error"]), str(answer.get("message", ""))
        except (ValueError, TypeError, KeyError, AttributeError):
            self.close()  # where the next answer begins is unknown: the next call starts the program anew
        else:
            raise EXCEPTIONS.get(raised, RuntimeError)(message)
        raise RuntimeError(f'expected an answer such as {{"result":{{"result":{{…}}}}}}; got {line[:SHOWN]!r}')

    def _value(self, x: Any) -> Any:
        """Return a value of an answer; for an array, read its bytes."""
        if not isinstance(x, dict):
            return x
        dtype, shape = numpy_dtype(x["dtype"]), tuple(map(int, x["shape"]))
        numbers = bytearray(prod(shape) * dtype.itemsize)
        if _stream(self._process.stdout).readinto(numbers) < len(numbers):
            self._end_alike()
        return np.frombuffer(numbers, dtype).reshape(shape)

    def _end_alike(self) -> NoReturn:
        """End this process as the program has ended, by the same status or signal."""
        status = self._process.wait()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(max(status, 0))


def _stream(pipe: IO[bytes] | None) -> Any:
    assert pipe is not None
    return pipe


def _as_json(x: Any, arrays: list["np.ndarray[Any, Any]"]) -> Any:
    """Return a value as JSON; an array, as its dtype and shape, is added to ``arrays``."""
    if not isinstance(x, np.ndarray | np.generic):
        return x
    arrays.append(np.asarray(x))
    return {"dtype": x.dtype.name, "shape": x.shape}
