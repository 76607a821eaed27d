"""Configuration of Sphinx for the site; ``pages.py`` writes the source pages."""

import re
import runpy
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxTranslator

from attnspec.conformance.reporting.page import mathml
from attnspec.spec import VERSION

project = "attnspec"
author = "The attnspec authors"
release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
html_theme = "furo"
html_title = f"attnspec {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["extra", "../../conformance/attnspec/conformance/SKILL.md"]
html_copy_source = False
html_show_copyright = False
highlight_language = "none"
html_math_renderer = "mathml"
html_theme_options = {"source_repository": "https://github.com/attnspec/attnspec/", "navigation_with_keys": True}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["math"]
pygments_style, pygments_dark_style = "friendly", "monokai"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = ["jax"]


def link_names(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link every name of the specification that is set as code to its page."""
    for literal in list(tree.findall(nodes.literal)):
        text = literal.astext()
        target = TARGETS.get(text) or TARGETS.get(text.casefold())
        inside_link = isinstance(literal.parent, nodes.reference | nodes.title)
        if target is None or inside_link or target == (page, ""):
            continue
        uri = app.builder.get_relative_uri(page, target[0]) + (f"#{target[1]}" if target[1] else "")
        shown = nodes.inline("", text) if "“" in text else literal.deepcopy()
        literal.replace_self(nodes.reference("", "", shown, refuri=uri, internal=True))


def escape_stars(app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape stars outside of code, which docstrings do not use for emphasis."""
    lines[:] = ["``".join(t if i % 2 else t.replace("*", r"\*") for i, t in enumerate(x.split("``"))) for x in lines]


def visit_inline_formula(self: SphinxTranslator, node: Any) -> None:
    """Write a formula in a line as MathML."""
    self.body.append(mathml(node.astext()).replace('display="block"', 'display="inline"'))
    raise nodes.SkipNode


def visit_formula(self: SphinxTranslator, node: Any) -> None:
    """Write a formula of its own as MathML; its parts, where ``\\quad`` separates them, break into lines."""
    parts = re.split(r"(?<=,)\s*\\quad\s*", node.astext().strip())
    if any(part.count("{") != part.count("}") for part in parts):
        parts = [node.astext().strip()]
    self.body.append(f'<div class="formula">{" ".join(map(mathml, parts))}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the formulas and the links."""
    app.add_html_math_renderer("mathml", (visit_inline_formula, None), (visit_formula, None))
    app.connect("doctree-resolved", link_names)
    app.connect("autodoc-process-docstring", escape_stars)


TARGETS = runpy.run_path(str(Path(__file__).with_name("pages.py")))["targets"]()
