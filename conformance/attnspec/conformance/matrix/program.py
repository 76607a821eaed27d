"""Source of a program that shows a violation with the library alone, without attnspec."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.conformance.judging.snippet import literal
from attnspec.spec.contract.tree import as_source, branches, field_names, map_tree

VIOLATES_PREFIX = "violates: "
"""Beginning of the last line of a program that shows the violation; it then exits with status 1."""

HELPERS = """
def leaves(x):
    return [y for part in x for y in leaves(part)] if isinstance(x, tuple) else [x]
"""


@dataclass(frozen=True)
class Call:
    """One call of the library: NumPy arguments by name, and results by path or the error message.

    ``cotangents`` are set for calls of gradients, with one entry per array of the result, None for arrays without.
    """

    arguments: Mapping[str, Any]
    arrays: Mapping[str, Any]
    cotangents: tuple[Any, ...] | None = None
    error: str = ""


class _InputPath:
    """Stands for an array in a tree of arguments; ``path`` is its key among the program's inputs."""

    def __init__(self, path: str) -> None:
        self.path = path


def program(
    heading: str, plain: str, call: Call, *, path: str | None = None, expected: Any = None, budget: Any = None
) -> str:
    """Return a program that repeats a call and compares its result at ``path`` with ``expected``.

    Without ``path`` it shows that the call raises an exception or does not return. ``plain`` is source from the row:
    ``call`` calls the library, ``array`` and ``numbers`` convert from and to NumPy, ``gradients`` differentiates.
    """
    inputs: dict[str, Any] = {}

    def collected(array_path: str, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        inputs[array_path] = x
        return _InputPath(array_path)

    tree = {name: map_tree(x, collected, name) for name, x in call.arguments.items()}
    arguments = ", ".join(
        f"{name}={as_source(x, lambda a: f'inputs[{a.path!r}]' if isinstance(a, _InputPath) else repr(a))}"
        for name, x in tree.items()
    )
    records = sorted({name for x in call.arguments.values() for name in _records(x)})
    arrays = "\n".join(f"    {array_path!r}: {_array(x)}," for array_path, x in inputs.items())
    float_paths = [array_path for array_path, x in inputs.items() if _is_float(x)]
    parts = [
        *(f"# {line}" for line in heading.splitlines()),
        "import sys",
        *(f"from types import SimpleNamespace as {name}" for name in records),
        "",
        "import numpy as np",
        plain.strip(),
        "",
        HELPERS,
        "",
        f"inputs = {{\n{arrays}\n}}",
        f"results = lambda: leaves(call({arguments}))",
    ]
    expression = "results()"
    if call.cotangents is not None:
        weights = ", ".join("None" if c is None else _array(c) for c in call.cotangents)
        parts += [f"cotangents = [{weights}]", f"paths = {float_paths!r}"]
        expression = "gradients(results, [inputs[path] for path in paths], cotangents)"
    if path is not None:
        # Gradients are listed by float argument, results in their order.
        position = (float_paths if call.cotangents is not None else list(call.arrays)).index(path)
        parts += [
            f"expected = {_numbers(expected)}",
            f"budget = {_numbers(budget)}",
            f"got = numbers({expression}[{position}])",
            'print("expected", expected, "got", got, sep="\\n")',
            "same = (got == expected) | (np.isnan(got) & np.isnan(expected))",
            "wrong = ~same & ~(np.abs(got - expected) <= budget)",
            f'print(f"{VIOLATES_PREFIX}{{wrong.sum()}} elements" if wrong.any() else "holds")',
            "sys.exit(bool(wrong.any()))",
        ]
    else:
        parts += [
            "try:",
            f"    {expression}",
            "except Exception as error:",
            f'    print("{VIOLATES_PREFIX}" + repr(error))',
            "    sys.exit(1)",
        ]
    text = "\n".join(parts) + "\n"
    # The source of a large array unpacks compressed bytes.
    return text.replace("import sys\n", "import base64, zlib\nimport sys\n", 1) if "zlib." in text else text


def _records(value: Any) -> set[str]:
    """Return the names of record types in a tree, such as ``EncoderLayerParameters``; programs use plain namespaces."""
    names = {type(value).__name__} if field_names(value) else set()
    return names.union(*(_records(part) for _, part in branches(value) or ()))


def _is_float(x: Any) -> bool:
    return bool(x.dtype.kind == "f" or x.dtype.name == "bfloat16")


def _numbers(x: Any) -> str:
    """Return a NumPy array as Python source; ``bfloat16`` is widened."""
    array = np.asarray(x)
    widened = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return literal(widened.astype(np.float64) if widened.dtype.kind == "f" and widened.dtype.itemsize > 8 else widened)


def _array(x: Any) -> str:
    return f"array({_numbers(x)}, {x.dtype.name!r})"
