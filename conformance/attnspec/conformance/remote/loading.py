"""Loading of a backend by registered name, module or file."""

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from attnspec.conformance.judging.declaration import Contract, place_of_attributes
from attnspec.conformance.judging.foreign_calls import Raised, call_safely, printable
from attnspec.conformance.remote.command import PREFIX, CommandBackend
from attnspec.conformance.remote.errors import BackendError
from attnspec.spec.contract.operation import OPERATIONS

GROUP = "attnspec.backends"

EXTRAS = ("torch", "triton", "jax")
"""Packages that an extra of attnspec of the same name installs."""


def registered() -> dict[str, str]:
    """Return the modules of the backends that installed packages register, by name."""
    return {e.name: e.value for e in sorted(entry_points(group=GROUP), key=lambda e: e.name)}


def comes_with_attnspec(name: str) -> bool:
    """Return whether attnspec itself registers the backend, which is then trusted."""
    return any(e.name == name and e.dist is not None and e.dist.name == "attnspec" for e in entry_points(group=GROUP))


def load(name: str) -> Any:
    """Load a backend by its name.

    It is a registered name, ``package.module[:attribute]``, ``path/to/file.py[:attribute]`` or ``command:COMMAND``.
    Without an attribute, the module must have operations itself, or define exactly one object or class with operations.
    Raises :class:`BackendError`.
    """
    if name.startswith(PREFIX):
        return _instance(CommandBackend(name.removeprefix(PREFIX)), name)
    target, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    if name in registered():
        target, _, attribute = registered()[name].partition(":")
    with _without_collections():
        module = call_safely(
            lambda: _from_file(Path(target)) if target.endswith(".py") else importlib.import_module(target)
        )
    if isinstance(module, Raised):
        raise BackendError(_cannot_import(name, target, module)) from module.error
    backend = _attribute(module, attribute, name) if attribute else _only_backend(module, name)
    backend = _instance(backend, name)
    _demand_attributes_in_place(module, backend, name)
    return backend


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection, which makes the import of PyTorch a fifth slower and frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"attnspec_backend_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _cannot_import(name: str, target: str, raised: Raised) -> str:
    error = raised.error
    missing = isinstance(error, ModuleNotFoundError) and error.name and target.split(".")[0] == error.name
    if missing and "." not in name and "/" not in name:
        known = ", ".join(registered()) or "none"
        return f"backend {name!r}: expected a registered name ({known}), a module or a file; got none of these"
    extra = error.name if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS else ""
    hint = f"; install it: pip install 'attnspec[{extra}]'" if extra else ""
    return f"backend {name!r}: cannot be imported: {raised.message}{hint}"


def _attribute(module: Any, attribute: str, name: str) -> Any:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise BackendError(f"backend {name!r}: expected an attribute {attribute!r} in {module.__name__}; got none")
        value = getattr(value, part)
    return value


def operations_of(x: Any) -> list[str]:
    """Return the operations that an object has as attributes."""
    return [o.name for o in OPERATIONS.values() if not o.reference_only and getattr(x, o.name, None) is not None]


def _only_backend(module: Any, name: str) -> Any:
    if _is_backend(module):
        return module
    functions, own = operations_of(module), _backends_in(module)
    # Where a file has both, an instance is preferred to its class.
    instances = [x for x in own if not isinstance(x, type)]
    candidates = instances or own
    defined = [f for f in functions if getattr(getattr(module, f), "__module__", None) == module.__name__]
    if len(candidates) == 1 and not defined:
        return candidates[0]
    if functions:
        raise BackendError(_nameless(module, name, defined or functions, candidates))
    if not candidates:
        known = ", ".join(list(OPERATIONS)[:3])
        others = ", ".join(_functions_in(module)[:5])
        got = f"only {others}: 'attnspec list' prints the names" if others else "a module without any"
        raise BackendError(f"backend {name!r}: expected operations such as {known}, …; got {got}")
    names = sorted(k for k, x in vars(module).items() if any(x is c for c in candidates))
    raise BackendError(f"backend {name!r}: expected one backend; got {', '.join(names)}: name one as {name}:{names[0]}")


def _functions_in(module: Any) -> list[str]:
    """Return the public functions that a module defines, and the methods of its classes."""
    own = [(name, x) for name, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__]
    methods = [(f"{c}.{name}", x) for c, owner in own if isinstance(owner, type) for name, x in vars(owner).items()]
    return [name for name, x in own + methods if isinstance(x, FunctionType) and "_" not in (name[0], x.__name__[0])]


def _is_backend(module: Any) -> bool:
    """Return whether a module is itself a backend."""
    # Without a name, a module's functions are those of its own classes, or imported from a framework.
    return bool(operations_of(module)) and isinstance(getattr(module, "name", None), str)


def _backends_in(module: Any) -> list[Any]:
    """Return the objects with operations in a module, and its own classes with operations."""
    return [
        x
        for x in vars(module).values()
        if not isinstance(x, ModuleType)
        and operations_of(x)
        and (not isinstance(x, type) or x.__module__ == module.__name__)
    ]


def _demand_attributes_in_place(module: Any, backend: Any, name: str) -> None:
    """Raise :class:`BackendError` for declarations in the module of a class, which does not read them.

    If a backend of the module has the attribute, nothing is raised: its value may be that of the module.
    """
    if backend is module or _is_backend(module):
        return
    for attribute in ("semantics", "precision", "limits"):
        declared = isinstance(getattr(module, attribute, None), Mapping)
        if declared and not any(getattr(x, attribute, None) for x in (backend, *_backends_in(module))):
            raise BackendError(
                f"backend {name!r}: {attribute}: expected no such name in the module, since its backend, "
                f"{type(backend).__name__}, does not read it; got one. Paste it {place_of_attributes(backend)}, or "
                "rename it"
            )


def _nameless(module: Any, name: str, functions: list[str], candidates: list[Any]) -> str:
    """Return the message for a module with operations but no name.

    Such a module may not be meant as a backend.
    """
    function = functions[0]
    origin = getattr(getattr(module, function), "__module__", None)
    imported = f", imported from {origin}," if origin and origin != module.__name__ else ""
    names = [k for k, x in vars(module).items() if any(x is c for c in candidates)]
    class_name = names[0] if names else "Class"
    return (
        f"backend {name!r}: name: expected a non-empty string, since the function {function}{imported} makes this "
        f"module a backend; got none. Add one, such as name = 'my-kernels', or judge a class as {name}:{class_name}"
    )


def _instance(backend: Any, name: str) -> Any:
    if isinstance(backend, type):
        instance = call_safely(backend)
        if isinstance(instance, Raised):
            raise BackendError(f"backend {name!r}: {backend.__name__}() raised {instance.message}") from instance.error
        backend = instance
    if not operations_of(backend):
        known = ", ".join(list(OPERATIONS)[:3])
        raise BackendError(
            f"backend {name!r}: expected operations such as {known}, …; got {type(backend).__name__} without any"
        )
    return backend


def contract_of(backend: Any, origin: str, device: str) -> Contract:
    """Return a backend's contract on a device. Raises :class:`BackendError` for an invalid declaration."""
    try:
        contract = Contract.of(backend, origin, device)
    except (ValueError, TypeError) as error:
        raise BackendError(f"backend {origin!r}: {error}") from error
    return replace(contract, notes=_misspelt(backend) | dict(contract.notes))


def _misspelt(backend: Any) -> dict[str, str]:
    """Notes on public functions with almost the name of an operation, which no law tries."""
    missing = [name for name in OPERATIONS if not hasattr(backend, name)]
    notes = {}
    for name in dir(backend):
        near = [] if name.startswith("_") else get_close_matches(name, missing, n=1, cutoff=0.9)
        if near and name not in OPERATIONS and callable(getattr(backend, name, None)):
            notes[printable(name)] = f"not tried, because no operation has this name; the nearest is {near[0]}"
    return notes
