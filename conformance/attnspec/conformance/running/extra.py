"""Packages of the extra ``check``: the command ``attnspec`` and suites in pytest need them; ``judge`` does not."""

from importlib.util import find_spec

MODULES = (
    *("hypothesis", "jinja2", "jsonschema", "markdown_it", "math_core"),
    *("pytest", "rich", "safetensors", "typer", "xdist"),
)
"""Modules of these packages that are imported where they are needed."""


def missing_packages() -> str:
    """Return a message on the modules of the extra that are not installed; empty if all are."""
    missing = [name for name in MODULES if find_spec(name) is None]
    return f"expected the packages of the extra 'check'; {describe(missing)}" if missing else ""


def describe(missing: list[str]) -> str:
    """Return which modules are missing, and the command that installs them."""
    return f"got no module {', '.join(missing)}. Install them: pip install 'attnspec[check]'"
