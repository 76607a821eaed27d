"""Evaluation of the bound that ``proofs/Bound.v`` states, from its own text, over arrays of inputs."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from .modules import ROOT

Tree = tuple[Any, ...]

STATEMENT = (ROOT / "proofs" / "Bound.v").read_text(encoding="utf-8")
BEGIN, END = "(** * The exact result *)", "(** * What a kernel may compute *)"
DEFINITION = re.compile(r"^Definition (\w+)(?: \(\w+ : nat\))? : R :=\s+(.*?)\.$", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r"\s*(=>|[A-Za-z_]\w*|\d+|[-+*/()])")


def definitions(text: str = STATEMENT) -> dict[str, str]:
    """Definitions of the exact result and of the bound, in their order."""
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

    def whole(self) -> Tree:
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
                self.take()  # the variable: every array has its axis anyway
                self.take("=>")
            yield self.whole()
            self.take(")")


class Statement:
    """The definitions for arrays of shape (batch, keys, features); bound variables are axes.

    ``inputs`` holds the variables of the section: q (batch, 1, d), k (batch, m, d), v (batch, m, 1), numbers, and the
    attendable keys A (batch, m, 1).
    """

    def __init__(self, inputs: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
        self.texts = definitions() if texts is None else texts
        self.values = dict(inputs)

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            parser = Parser(self.texts[name])
            self.values[name] = self.value(parser.whole())
            parser.take("")
        return self.values[name]

    @cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        def growth(u: float, n: int) -> Any:
            return np.expm1(-n * np.log1p(-u))

        ours: dict[str, Callable[..., Any]] = {"Rmin": np.minimum, "Rabs": np.abs, "INR": float, "growth": growth}
        return {**ours, "sqrt": np.sqrt, "exp": np.exp, "expm1": np.expm1}

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
        a, b = map(self.value, parts)
        operators: dict[str, Callable[[Any, Any], Any]] = {
            "+": np.add,
            "-": np.subtract,
            "*": np.multiply,
            "/": np.true_divide,
        }
        return operators[kind](a, b)

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
        if name in self.functions:
            return self.functions[name](*map(self.value, arguments))
        return self[name]  # an array; its arguments are bound variables
