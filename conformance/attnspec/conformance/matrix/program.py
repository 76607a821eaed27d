"""The text of a program that shows a violation with the library alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.conformance.judging.snippet import literal
from attnspec.spec.contract.tree import as_source, branches, field_names, mapped

SAYS = "violates: "
"""Beginning of a program's last line when it shows the violation; it then exits with 1."""

TOOLS = """
def leaves(x):
    return [y for part in x for y in leaves(part)] if isinstance(x, tuple) else [x]
"""


@dataclass(frozen=True)
class Call:
    """One call of the library: NumPy arguments by name, and results by path or the error.

    ``cotangents`` are set for gradient calls: numbers per array of the result, None for arrays without.
    """

    arguments: Mapping[str, Any]
    arrays: Mapping[str, Any]
    cotangents: tuple[Any, ...] | None = None
    error: str = ""


class _At:
    """The place of an array among the program's inputs."""

    def __init__(self, path: str) -> None:
        self.path = path


def program(
    heading: str, plain: str, call: Call, *, path: str | None = None, expected: Any = None, budget: Any = None
) -> str:
    """Return a program that repeats a call and compares its result at ``path`` with ``expected``.

    Without ``path`` the violation is that the call raises or does not return.
    """
    given: dict[str, Any] = {}

    def taken(at: str, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        given[at] = x
        return _At(at)

    tree = {name: mapped(x, taken, name) for name, x in call.arguments.items()}
    shown = ", ".join(
        f"{name}={as_source(x, lambda a: f'given[{a.path!r}]' if isinstance(a, _At) else repr(a))}"
        for name, x in tree.items()
    )
    records = sorted({name for x in call.arguments.values() for name in _records(x)})
    arrays = "\n".join(f"    {at!r}: {_array(x)}," for at, x in given.items())
    wanted = [at for at, x in given.items() if _is_float(x)]
    parts = [
        *(f"# {line}" for line in heading.splitlines()),
        "import sys",
        *(f"from types import SimpleNamespace as {name}" for name in records),
        "",
        "import numpy as np",
        plain.strip(),
        "",
        TOOLS,
        "",
        f"given = {{\n{arrays}\n}}",
        f"results = lambda: leaves(call({shown}))",
    ]
    asked = "results()"
    if call.cotangents is not None:
        weights = ", ".join("None" if c is None else _array(c) for c in call.cotangents)
        parts += [f"cotangents = [{weights}]", f"wanted = {wanted!r}"]
        asked = "gradients(results, [given[path] for path in wanted], cotangents)"
    if path is not None:
        place = (wanted if call.cotangents is not None else list(call.arrays)).index(path)
        parts += [
            f"expected = {_numbers(expected)}",
            f"budget = {_numbers(budget)}",
            f"got = numbers({asked}[{place}])",
            'print("expected", expected, "got", got, sep="\\n")',
            "same = (got == expected) | (np.isnan(got) & np.isnan(expected))",
            "wrong = ~same & ~(np.abs(got - expected) <= budget)",
            f'print(f"{SAYS}{{wrong.sum()}} elements" if wrong.any() else "holds")',
            "sys.exit(bool(wrong.any()))",
        ]
    else:
        parts += [
            "try:",
            f"    {asked}",
            "except Exception as error:",
            f'    print("{SAYS}" + repr(error))',
            "    sys.exit(1)",
        ]
    text = "\n".join(parts) + "\n"
    return text.replace("import sys\n", "import base64, zlib\nimport sys\n", 1) if "zlib." in text else text


def _records(value: Any) -> set[str]:
    names = {type(value).__name__} if field_names(value) else set()
    return names.union(*(_records(part) for _, part in branches(value) or ()))


def _is_float(x: Any) -> bool:
    return bool(x.dtype.kind == "f" or x.dtype.name == "bfloat16")


def _numbers(x: Any) -> str:
    """Return a NumPy array as Python source; ``bfloat16`` is widened."""
    known = np.asarray(x)
    wide = known.astype(np.float32) if known.dtype.name == "bfloat16" else known
    return literal(wide.astype(np.float64) if wide.dtype.kind == "f" and wide.dtype.itemsize > 8 else wide)


def _array(x: Any) -> str:
    return f"array({_numbers(x)}, {x.dtype.name!r})"
