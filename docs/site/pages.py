"""Generator of the site's source pages: ``python docs/site/pages.py FOLDER``.

The pages of the repository are copied with their links rewritten. Pages of operations, laws, questions of semantics,
sources and adapters are written from the specification, so that no fact stands in two places.
"""

import inspect
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from attnspec import reference
from attnspec.conformance import tolerance
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.inputs.heads import with_divided_heads
from attnspec.conformance.judging.snippet import literal
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.conformance.reporting import entries, markup, page
from attnspec.conformance.reporting.markup import displayed, table
from attnspec.conformance.reporting.specification import Section, specification
from attnspec.conformance.templates import FRAMEWORKS, TITLES, adapter_texts, build_command
from attnspec.spec import LAWS, OPERATIONS, QUESTIONS, Limits, Operation
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.documentation import sections as headed
from attnspec.spec.contract.operation import CHAPTERS
from attnspec.spec.contract.precision import CLASSES
from attnspec.spec.contract.sources import SOURCES, Citation
from attnspec.spec.contract.tree import as_source, flatten
from attnspec.spec.lectures import LECTURES

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/attnspec/attnspec/blob/main"
NOT_COMMITTED = ("docs/diagnosis.md", "docs/rediscovery.md")
PICTURES = (".svg", ".png")


def documents() -> dict[Path, str]:
    """Names of the site's pages, by the page of the repository from which each is copied."""
    names = {ROOT / "README.md": "start", ROOT / "CONTRIBUTING.md": "contributing", ROOT / "CHANGELOG.md": "changes"}
    for file in sorted((ROOT / "docs").rglob("*.md")):
        name = file.relative_to(ROOT / "docs").with_suffix("").as_posix()
        if f"docs/{name}.md" not in NOT_COMMITTED and not name.startswith("matrix/"):
            names[file] = name.removeprefix("site/")
    for file in sorted((ROOT / "examples").rglob("*.md")):
        names[file] = file.relative_to(ROOT).with_suffix("").as_posix()
    return names


def slug(text: str) -> str:
    """Return the anchor that Sphinx gives to a heading of this text."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")


# Names that link to their page ----------------------------------------------------------------------------------------


def targets() -> dict[str, tuple[str, str]]:
    """Page and anchor of every name and citation that links to its own page, wherever it is set as code."""
    targets_by_name = {name: (f"operations/{name}", "") for name in OPERATIONS}
    targets_by_name |= {x.id: (f"laws/{x.chapter}", slug(x.id)) for x in LAWS.values()}
    targets_by_name |= {name: ("questions", slug(name)) for name in QUESTIONS}
    targets_by_name |= dict.fromkeys(CLASSES, ("precision", "what-each-class-allows"))
    for text, anchor in page.citations(specification()).items():
        targets_by_name[text] = (f"lectures/{text[:2].upper()}", slug(anchor))
    return targets_by_name


def cited(citations: Iterable[Citation]) -> str:
    """Citations as a list: equations and passages of lectures, and links to papers."""
    lines = []
    for c in citations:
        source = SOURCES[c.source]
        title = f"[{source.title}]({source.address})" if source.address else source.title
        lines.append(f"- `{c}`: {title}" if c.source in LECTURES else f"- {c}: {title}")
    return "\n".join(lines)


# Operations -----------------------------------------------------------------------------------------------------------


def operation_page(o: Operation, libraries: Mapping[tuple[str, str], str], verdicts: list[dict[str, Any]]) -> str:
    """Return the page of an operation."""
    parts = headed(o)
    function = inspect.unwrap(getattr(reference, o.name))
    lines, number = inspect.getsourcelines(function)
    file = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
    text = entries.operation_entry(o)
    call = next(line for line in text.split("\n\n") if line.startswith("Call:"))
    where = text.partition("\n\nWhere:")[2].partition("\n\nSource:")[0]
    laws = [x for x in LAWS.values() if x.concerns(o) and not o.reference_only]
    laws.sort(key=lambda x: (x.chapter == "operation", x.chapter != o.chapter))
    questions = [q for q in QUESTIONS.values() if q.concerns(o) and not o.reference_only]
    defects = [r for r in REDISCOVERED.values() if o.name in r.operations]
    places = entries.places_of(o.name)
    written = [
        (f"{o.name}", f"{o.statement}{displayed(o.formula)}\n\n{call}"),
        ("Shapes", where),
        ("Edges", f"{parts['Edges']}\n\nErrors: {parts['Errors']}"),
        ("Reference", f"```python\n{''.join(lines)}```\n\n[{file}]({REPOSITORY}/{file}#L{number})"),
        ("Worked number", worked(o)),
        ("Choices", choices(questions, libraries)),
        ("Laws", "\n".join(f"- `{x.id}`: {markup.literal(x.statement)}" for x in laws)),
        ("Who conforms", conforming(o, verdicts)),
        ("Public defects", "\n".join(f"- [{r.source}]({r.address}), {r.framework}: {r.statement}" for r in defects)),
        ("Sources", f"{cited(o.sources)}\n\n{f'In the lectures: {places}' if places else ''}"),
    ]
    return joined((title, text) for title, text in written if text.strip())


def choices(questions: Iterable[Any], libraries: Mapping[tuple[str, str], str]) -> str:
    """Return a table of the choices, the normative one first, with the libraries that make each."""
    rows = [
        (
            "" if i else f"`{q.name}`: {q.statement}",
            f"**`{c}`**" if c == q.normative else f"`{c}`",
            libraries[q.name, c],
        )
        for q in questions
        for i, c in enumerate(q.choices)
    ]
    return f"**Bold** choices are normative.\n\n{table(['question', 'choice', 'libraries'], rows)}" if rows else ""


def library_choices() -> dict[tuple[str, str], str]:
    """Libraries by question and choice, as the table of ``docs/rosetta.md`` links them."""
    libraries, question = {}, ""
    for line in (ROOT / "docs" / "rosetta.md").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| (?:`(\w+)`)? \| `([\w-]+)` \| (.*) \|", line):
            question = match[1] or question
            libraries[question, match[2]] = match[3]
    return libraries


def worked(o: Operation) -> str:
    """Return a call of the reference with small inputs, what it prints, and what float32 may miss."""
    sizes = {s: 3 if o.axis(s) & Axis.KEY and not o.axis(s) & Axis.QUERY else 2 for s in o.sizes}
    sizes |= {name: 2 for leaf in o.leaves for d in leaf.core if d.variadic for name in d.factors}
    absent = frozenset(leaf.path for leaf in o.leaves if leaf.optional)
    example = Example(sizes=with_divided_heads(sizes, o, Limits()), absent=absent, seed=1)
    drawn = example.arguments(o, "float64")
    rounded = drawn.replaced({leaf.path: np.round(x, 1) + 0.0 for leaf, x in drawn.floats})
    arguments = {name: x for name, x in rounded.passed.items() if x is not None and x is not False}
    source = {name: re.sub(r",\s+", ", ", as_source(x, literal)) for name, x in arguments.items()}
    source = {name: text.replace(", np.float64)", ")") for name, text in source.items()}
    records = sorted({name for x in source.values() for name in re.findall(r"\b([A-Z]\w+)\(", x)})
    imports = ["import numpy as np", "", f"from attnspec.reference import {o.name}"]
    imports += [f"from attnspec.spec import {', '.join(records)}"] if records else []
    passed = ", ".join(f"{name}={name}" if name in o.keyword_only else name for name in arguments)
    code = "\n".join([*imports, "", *(f"{name} = {x}" for name, x in source.items()), f"print({o.name}({passed}))"])
    shown = printed(code)
    text = f"```python\n{code}\n```\n\nprints\n\n```\n{shown}\n```"
    narrow = rounded.replaced({leaf.path: x.astype(np.float32) for leaf, x in rounded.floats}).passed
    if o.reference_only or not rounded.floats:
        return text
    allowed = tolerance(o.name, **narrow).allowed
    largest = max(float(np.max(x)) for x in flatten({"": allowed}).values() if x is not None and np.size(x))
    return f"{text}\n\nIn float32, no number of a correct implementation is off by more than `{largest:.2g}`."


def printed(code: str) -> str:
    """Run code and return what it prints."""
    lines: list[str] = []
    with np.printoptions(precision=6, suppress=True):
        exec(code, {"print": lambda *values: lines.append(" ".join(map(str, values)))})
    return "\n".join(lines)


def conforming(o: Operation, verdicts: list[dict[str, Any]]) -> str:
    """Return a table of the judged implementations that provide the operation, with the dates of their verdicts."""
    rows = [
        (v["implementation"], f"{v['date']}, `{v['profile']}`", "; ".join(f"{d}: {text}" for d, text in cells.items()))
        for v in verdicts
        if (cells := v["operations"].get(o.name))
    ]
    return table(["implementation", "judged", "verdict"], rows) if rows else ""


# Other pages ----------------------------------------------------------------------------------------------------------


def spec_pages(libraries: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the pages of laws, questions, notation, misprints and lectures."""
    for section in specification():
        kind, _, name = section.anchor.partition("-")
        if kind == "laws":
            yield f"laws/{name}", chapter(section)
        if kind == "lecture":
            yield f"lectures/{name}", chapter(section)
        if kind in ("notation", "misprints"):
            yield kind, chapter(section)
        if kind == "questions":
            parts = ((q.name, f"{entries.question_entry(q)}\n\n{choices([q], libraries)}") for q in QUESTIONS.values())
            yield kind, joined([(section.title, section.text), *parts])
    rows = [(s.key, f"[{s.title}]({s.address})" if s.address else s.title) for s in SOURCES.values()]
    yield "sources", joined([("Sources", table(["cited as", "title"], rows))])


def chapter(section: Section) -> str:
    """Return a section of the specification, and its subsections, as a page."""
    parts = []
    for part in section.parts:
        label = "" if slug(part.anchor) == slug(part.title) else f"({slug(part.anchor)})=\n"
        parts.append((part.title, part.text, label))
    return joined([(section.title, section.text), *parts])


def contents(title: str, text: str, names: Iterable[str]) -> str:
    """Return a page that lists other pages."""
    return joined([(title, f"{text}\n\n```{{toctree}}\n:maxdepth: 1\n\n{chr(10).join(names)}\n```")])


def kernel_page(framework: str) -> str:
    """Return the page of a framework: the files that ``attnspec init`` writes, and how they are judged."""
    texts = adapter_texts(framework, "mine")
    kinds = {".py": "python", ".c": "c", ".cu": "cuda"}
    files = "\n\n".join(f"`mine{end}`:\n\n```{kinds[end]}\n{text}```" for end, text in texts.items())
    steps = [
        f"attnspec init --framework {framework} mine.py",
        build_command(framework, "mine"),
        "attnspec check mine.py",
    ]
    text = f"""\
```
{chr(10).join(filter(None, steps))}
```

The first command writes an adapter that conforms. Put your kernel in its place, keep the signature, and check again.

{files}

- The argument names, shapes and edges are those of `scaled_dot_product_attention`. Each further operation is one more
  method.
- What your kernel lacks is declared: [limits](../conventions.md#limits). What it does otherwise, too:
  [semantics](../conventions.md#semantics), [precision](../precision.md).
- A kernel on a GPU may be compiled for every shape, or break its process: [CUDA kernels](../cuda-kernel.md).
- [Read a verdict](../verdicts.md), [put it into CI](../ci.md).
"""
    return joined([(f"Your kernel in {TITLES[framework]}", text)])


def joined(parts: Iterable[tuple[str, ...]]) -> str:
    """Return a page of a title and sections, in MyST's Markdown; a third text precedes the heading."""
    sections = (
        f"{''.join(label)}{'##' if i else '#'} {title}\n\n{text}" for i, (title, text, *label) in enumerate(parts)
    )
    text = "\n\n".join(sections) + "\n"
    labels = "|".join(map(re.escape, page.LABELS))
    text = re.sub(rf"^({labels}|Errors|Result):", r"**\1:**", text, flags=re.MULTILINE)
    return re.sub(r"\$`([^`]+)`\$", r"{math}`\1`", text)


# Pages of the repository ----------------------------------------------------------------------------------------------


def copied(file: Path, name: str, folder: Path, names: Mapping[Path, str]) -> str:
    """Return a page of the repository with its links rewritten: to pages of the site, pictures, or the repository."""

    def target(match: re.Match[str]) -> str:
        path, hash_, anchor = match[1].partition("#")
        if "://" in path or not path or not (file.parent / path).exists():
            return match[0]
        goal = (file.parent / path).resolve()
        up = "../" * name.count("/")
        if goal in names:
            return f"]({up}{names[goal]}.md{hash_}{anchor})"
        inside = goal.relative_to(ROOT).as_posix()
        if goal.suffix in PICTURES:
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(goal, folder / inside)
            return f"]({up}{inside})"
        return f"]({REPOSITORY}/{inside}{hash_}{anchor})"

    text = re.sub(r"\]\(([^)\s]+)\)", target, file.read_text(encoding="utf-8"))
    return re.sub(r"```mermaid\n(.*?)```", arrows, text, flags=re.DOTALL)


def arrows(match: re.Match[str]) -> str:
    """Return a diagram of Mermaid, which needs a script from elsewhere, as lines of text with arrows."""
    titles: dict[str, str] = {}
    for key, title in re.findall(r"(\w+)[\[{]([^\]}]*)[\]}]", match[1]):
        titles[key] = title.replace("<br>", " ")
    edges = re.findall(r"^\s+(\w+)\S*.*?-->(?:\|([^|]*)\|)? (\w+)", match[1], re.MULTILINE)
    lines = [f"{titles.get(a, a)} → {titles.get(b, b)}{f' ({label})' if label else ''}" for a, label, b in edges]
    return "```text\n" + "\n".join(lines) + "\n```"


def readme(text: str) -> dict[str, str]:
    """Return the parts of the README that the site shows on pages of their own."""
    introduction, install, start = text.partition("## Install\n")
    start, _, reading = start.partition("## Where to read on\n")
    introduction = introduction.partition("\n")[2].replace("](#", "](start.md#")
    return {"introduction": introduction, "start": install + start, "reading": reading}


def write(folder: Path) -> None:
    """Write all source pages of the site into a folder."""
    libraries = library_choices()
    verdicts = json.loads((ROOT / "docs" / "site" / "verdicts.json").read_text(encoding="utf-8"))
    names = documents()
    pages = {name: copied(file, name, folder, names) for file, name in names.items()}
    parts = readme(pages["start"])
    pages["start"] = joined([("Start in five minutes", parts["start"])])
    pages["index"] = Template(pages["index"]).substitute(parts)
    pages |= {f"operations/{o.name}": operation_page(o, libraries, verdicts) for o in OPERATIONS.values()}
    pages |= dict(spec_pages(libraries))
    pages |= {f"kernels/{framework}": kernel_page(framework) for framework in FRAMEWORKS}
    for c in CHAPTERS:
        members = [o for o in OPERATIONS.values() if o.chapter == c]
        rows = [(f"`{o.name}`", o.statement) for o in members]
        pages[f"operations/{c}"] = contents(f"Chapter {c}", table(["", ""], rows), [o.name for o in members])
    pages["operations/index"] = contents("Operations", "", CHAPTERS)
    pages["laws/index"] = contents("Laws", "", dict.fromkeys(x.chapter for x in LAWS.values()))
    pages["lectures/index"] = contents("Lectures", "", LECTURES)
    pages["kernels/index"] = contents("Your kernel in …", "", FRAMEWORKS)
    for name, text in pages.items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
