"""Adapters that ``attnspec init`` writes: each conforms, until the user puts a kernel into it."""

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
"""Commands that build an adapter's library, by framework."""

TITLES = {
    "torch": "PyTorch",
    "cuda": "CUDA",
    "triton": "Triton",
    "jax": "JAX",
    "numpy": "NumPy",
    "c": "C",
    "mlx": "MLX",
}
"""Name of each framework on pages."""

FRAMEWORKS = tuple(TITLES)


def write_adapter(framework: str, path: Path) -> tuple[list[Path], str]:
    """Write the files of an adapter; return their paths and the command that builds its library, if any.

    Raises :class:`BackendError` unless ``path`` is a new file with the name of a Python module.
    """
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise BackendError(f"init: expected a file named like a Python module, such as mine.py; got {str(path)!r}")
    texts = {path.with_suffix(suffix): text for suffix, text in adapter_texts(framework, path.stem).items()}
    for file in texts:
        if file.exists():
            raise BackendError(f"init: expected a file that does not exist yet; got {str(file)!r}")
    for file, text in texts.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BackendError(f"init: expected a file that can be written; got {str(file)!r}") from error
    return list(texts), build_command(framework, path.stem)


def adapter_texts(framework: str, stem: str) -> dict[str, str]:
    """Return the texts of an adapter's files by suffix; ``stem`` names the files."""
    class_name = "".join(word.capitalize() for word in stem.split("_"))
    names = {"stem": stem, "class_name": class_name, "build": build_command(framework, stem)}
    texts = {suffix: _template(framework, suffix) for suffix in SUFFIXES}
    return {suffix: Template(text).substitute(names) for suffix, text in texts.items() if text}


def build_command(framework: str, stem: str) -> str:
    """Return the command that builds the library of an adapter; empty if there is none."""
    return Template(BUILD.get(framework, "")).substitute(stem=stem)


def _template(framework: str, suffix: str) -> str:
    """Return the template of a file; empty if the framework has none with this suffix."""
    file = files(__name__).joinpath(f"{framework}{suffix}.txt")
    return file.read_text(encoding="utf-8") if file.is_file() else ""
