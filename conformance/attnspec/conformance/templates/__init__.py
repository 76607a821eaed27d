"""Adapters to begin with, which ``attnspec init`` writes; each is right, and is replaced by the user's kernel."""

from importlib.resources import files
from pathlib import Path
from string import Template

from attnspec.conformance.remote.errors import BackendError

SUFFIXES = (".py", ".c", ".cu")
"""Suffixes of the files of an adapter."""

BUILD = {
    "c": "cc -O2 -shared -fPIC -o lib$stem.so $stem.c -lm",
    "cuda": "nvcc -O2 -shared -Xcompiler -fPIC -o lib$stem.so $stem.cu",
}
"""Command that builds the library of a framework, where there is one."""

FRAMEWORKS = ("torch", "cuda", "triton", "jax", "numpy", "c")


def write_adapter(framework: str, path: Path) -> tuple[list[Path], str]:
    """Write the files of an adapter; return their paths and the command that builds its library, if any.

    :class:`BackendError` unless ``path`` is a new Python file, whose name is one for a module.
    """
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise BackendError(f"init: expected a file named like a Python module, such as mine.py; got {str(path)!r}")
    texts = {path.with_suffix(suffix): _template(framework, suffix) for suffix in SUFFIXES}
    texts = {file: text for file, text in texts.items() if text}
    for file in texts:
        if file.exists():
            raise BackendError(f"init: expected a file that does not exist yet; got {str(file)!r}")
    names = {"stem": path.stem, "class_name": "".join(word.capitalize() for word in path.stem.split("_"))}
    names["build"] = Template(BUILD.get(framework, "")).substitute(names)
    for file, text in texts.items():
        try:
            file.write_text(Template(text).substitute(names), encoding="utf-8")
        except OSError as error:
            raise BackendError(f"init: expected a file that can be written; got {str(file)!r}") from error
    return list(texts), names["build"]


def _template(framework: str, suffix: str) -> str:
    """Return the template of a file; empty if the framework has none with this suffix."""
    file = files(__name__).joinpath(f"{framework}{suffix}.txt")
    return file.read_text(encoding="utf-8") if file.is_file() else ""
