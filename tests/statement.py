"""Evaluation of the definitions in ``proofs/Bound.v``, read from its text, over arrays of inputs."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .modules import ROOT

Tree = tuple[Any, ...]

STATEMENT = (ROOT / "proofs" / "Bound.v").read_text(encoding="utf-8")
BEGIN, END = "(** * The exact result *)", "(** * What a kernel may compute *)"
DEFINITION = re.compile(r"^Definition (\w+)(?: \(\w+ : nat\))? : R :=\s+(.*?)\.$", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r"\s*(=>|[A-Za-z_]\w*|\d+|[-+*/()])")

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Rmin": np.minimum,
    "Rabs": np.abs,
    "INR": float,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "growth": lambda u, n: np.expm1(-n * np.log1p(-u)),
}


def definitions(text: str = STATEMENT) -> dict[str, str]:
    """Texts of the definitions of the exact result and of the bound, by name."""
    return dict(DEFINITION.findall(text[text.index(BEGIN) : text.index(END)]))


def tokens(text: str) -> Iterator[str]:
    text, position = text.strip(), 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"statement: cannot read {text[position:]!r}")
        position = match.end()
        yield match[1]


class Parser:
    """Parser of Coq's arithmetic: sums, products, functions, ``fun x => …``."""

    def __init__(self, text: str) -> None:
        self.unread = [*tokens(text), ""]

    def take(self, *expected: str) -> str:
        token = self.unread.pop(0)
        if expected and token not in expected:
            raise ValueError(f"statement: expected {expected}; got {token!r}")
        return token

    def expression(self) -> Tree:
        return self.chain(("+", "-"), lambda: self.chain(("*", "/"), self.negated))

    def chain(self, operators: tuple[str, ...], part: Callable[[], Tree]) -> Tree:
        tree = part()
        while self.unread[0] in operators:
            tree = (self.take(), tree, part())
        return tree

    def negated(self) -> Tree:
        if self.unread[0] == "-":
            self.take()
            return ("negative", self.negated())
        function, *arguments = self.atoms()
        return ("apply", function, arguments) if arguments else function

    def atoms(self) -> Iterator[Tree]:
        while re.match(r"\w|\(", self.unread[0]):
            token = self.take()
            if token != "(":
                yield ("number", int(token)) if token.isdigit() else ("name", token)
                continue
            if self.unread[0] == "fun":
                self.take()
                self.take()  # The variable has no value: it stands for an axis of the arrays.
                self.take("=>")
            yield self.expression()
            self.take(")")


class Statement:
    """The definitions for arrays of shape (batch, keys, features), whose axes stand for bound variables.

    ``inputs`` holds the variables of Coq's section: numbers, the arrays q (batch, 1, d), k (batch, m, d) and
    v (batch, m, 1), and a mask of the attendable keys, A (batch, m, 1).
    """

    def __init__(self, inputs: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
        self.texts = definitions() if texts is None else texts
        self.values = dict(inputs)

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            parser = Parser(self.texts[name])
            self.values[name] = self.value(parser.expression())
            parser.take("")
        return self.values[name]

    def value(self, tree: Tree) -> Any:
        kind, *parts = tree
        if kind == "number":
            return parts[0]
        if kind == "name":
            return self[parts[0]]
        if kind == "negative":
            return -self.value(parts[0])
        if kind == "apply":
            return self.applied(*parts)
        return OPERATORS[kind](*map(self.value, parts))

    def applied(self, function: Tree, arguments: list[Tree]) -> Any:
        name = function[1]
        if name in ("sum", "maximum"):
            terms, over = self.value(arguments[0]), arguments[1]
            if over == ("name", "A"):
                terms, keys = np.broadcast_arrays(terms, self["A"])
                if name == "sum":
                    return np.where(keys, terms, 0).sum(1, keepdims=True)
                return np.where(keys, terms, -np.inf).max(1, keepdims=True)
            assert (name, over) == ("sum", ("apply", ("name", "seq"), [("number", 0), ("name", "d")]))
            return terms.sum(2, keepdims=True)
        if name in FUNCTIONS:
            return FUNCTIONS[name](*map(self.value, arguments))
        return self[name]  # The array holds the values for all arguments, which are bound variables.
