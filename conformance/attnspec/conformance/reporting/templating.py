"""HTML pages from the templates beside this module."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_TEMPLATES = Environment(
    loader=PackageLoader("attnspec.conformance.reporting"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def rendered(template: str, **parts: Any) -> str:
    """Return a template filled with its parts; text is escaped unless the template marks it ``safe``."""
    return _TEMPLATES.get_template(template).render(parts)
