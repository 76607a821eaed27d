"""Gradients of dot-product attentions at model sizes, in some rows and at some keys."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import starmap
from math import prod
from typing import NamedTuple, Self

import numpy as np
from threadpoolctl import threadpool_limits

from attnspec.conformance.harness.choices import Expected
from attnspec.conformance.harness.normalizers import Attendance, Scores
from attnspec.conformance.harness.pair_gradients import Element, gradients_at, query_gradients
from attnspec.conformance.harness.parts import AT_ONCE, Part, of_elements, pairs, with_rows
from attnspec.conformance.harness.record import Record
from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, take
from attnspec.conformance.judging.rows import sampled
from attnspec.conformance.judging.subject import Results
from attnspec.reference.scoring import dot_scores, scaled_dot_scores
from attnspec.spec.attention import DotProductAttention, ScaledDotProductAttention

SCORES: Mapping[type, Scores] = {DotProductAttention: dot_scores, ScaledDotProductAttention: scaled_dot_scores}
"""Operations of the form softmax(scores(query, key)) value, with their scores."""

ALL_PAIRS = 3 * 2**28
"""Pairs whose scores are computed for gradients of keys; at least one batch element is covered."""

DOUBLE = 4
"""Number of single-precision pairs that take the time of one in double precision."""

KEYS = 16
"""Keys judged per element."""

LATE = 256
"""Last keys, from which a sample is judged in elements where all rows are too slow."""

OUTPUT = "the output"
"""Name of the output beside gradients."""


class Dots:
    """Judge of the gradients of one operation with such scores."""

    def __init__(self, record: Record, scores: Scores, seed: int) -> None:
        self.record, self.subject, self.scores, self.seed = record, record.subject, scores, seed
        operation = self.subject.operation
        self.query, self.key, self.value = (
            leaf.path for leaf in (operation.queries[0], operation.attended[0], operation.attended[-1])
        )

    @classmethod
    def of(cls, record: Record, seed: int) -> Self | None:
        """Return the judge; None if scores are not dot products, or double precision does not suffice."""
        scores = SCORES.get(record.subject.operation.protocol)
        return None if scores is None or record.subject.dtype == "float64" else cls(record, scores, seed)

    def judge(self, given: Part, outputs: Results, found: Results, rows: Numbers, rng: np.random.Generator) -> None:
        """Judge gradients of queries in these rows, and those of keys and values at chosen keys."""
        output = outputs[self.subject.operation.leading.path]
        # So many rows that the elements of the batch come one by one.
        whole = list(of_elements(given, {**found, OUTPUT: output}, AT_ONCE))
        chosen = self._keys(given, found, rng)
        # The slowest jobs first, so that none is left alone at the end.
        jobs = sorted(zip(whole, chosen, strict=True), key=lambda job: len(job[1].rows), reverse=True)
        # Threads of the BLAS would compete with these threads.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as threads:
            done = list(threads.map(lambda job: self._expected(job[0][0], job[0][1], rows, job[1]), jobs))
        for ((part, own), keys), expected in zip(jobs, done, strict=True):
            for path, wanted in expected.items():
                self._compare(path, own[path], wanted, part, rows if path == self.query else keys.keys, rows)
        self.record.judged += self._words(given, found, len(rows), chosen)

    def _keys(self, given: Part, found: Results, rng: np.random.Generator) -> list["_Keys"]:
        """Choose the keys of every element: any keys in affordable elements, late keys in the others.

        Under causal attention late keys have gradients from few rows. Otherwise all rows contribute, and the other
        elements get no keys.
        """
        arguments = given.arguments
        n, m, count = arguments.queries or 0, arguments.keys_count or 0, prod(arguments.batch)
        if not {self.key, self.value} & {*found}:
            return [_NO_KEYS] * count
        most = self._affordable(given)
        # Consecutive seeds cover all elements.
        some = {(self.seed * most + i) % count for i in range(min(most, count))}
        offset = self._offset(arguments) if arguments.causal else None
        late = _NO_KEYS
        if offset is not None:
            last = int(np.clip(n + offset, 0, m))
            first = max(last - LATE, 0)
            if last - first >= KEYS:
                late = _Keys(first + sampled(last - first, KEYS, rng), range(max(first - offset, 0), n))
        return [_Keys(sampled(m, KEYS, rng), range(n)) if i in some else late for i in range(count)]

    def _affordable(self, given: Part) -> int:
        """Return the number of batch elements whose pairs can be computed."""
        arguments = given.arguments
        each = pairs(arguments) // max(prod(arguments.batch), 1) // (2 if arguments.causal else 1)
        return max(ALL_PAIRS // (each * (DOUBLE if self.subject.dtype == "float32" else 1)), 1)

    def _expected(self, part: Part, own: Results, rows: Numbers, keys: "_Keys") -> dict[str, Expected]:
        arguments, p = part.arguments, self.subject.precision
        query, key, value = (arguments.array(path) for path in (self.query, self.key, self.value))
        cotangent = part.results[self.subject.operation.leading.path]
        shape = (len(query), len(key))
        attendance = Attendance(shape, arguments.mask, self._offset(arguments) if arguments.causal else None)
        found: dict[str, Expected] = {}
        if self.query in own:
            allowed = attendance.of_rows(rows)
            of = (query[rows], key, value, cotangent[rows])
            found[self.query] = Expected(*query_gradients(*of, allowed, self.scores, p))
        if len(keys.keys):
            element = Element(query, key, value, cotangent, own[OUTPUT], attendance).behind(keys.rows.start)
            both = starmap(Expected, gradients_at(keys.keys, element, self.scores, p))
            found |= {path: x for path, x in zip((self.key, self.value), both, strict=True) if path in own}
        return found

    def _offset(self, arguments: Arguments) -> int:
        """Return the number of keys beyond its own position that a row may attend to under causal attention."""
        return (arguments.keys_count or 0) - (arguments.queries or 0) if self.subject.semantics.bottom_right else 0

    def _compare(self, path: str, got: Numbers, wanted: Expected, part: Part, at: Numbers, rows: Numbers) -> None:
        leaf, operation = part.arguments.leaves[path], self.subject.operation
        size = (operation.asking if path == self.query else operation.asked) or ""
        got = along(got, leaf, size, part.arguments.binding, take(at))
        # The oracle of a whole element would be too large.
        few = replace(with_rows(self.subject, part, rows), rows=at)
        self.record.compare(got, wanted, few, f"the gradient of {path}", len(leaf.core) + leaf.axes(size)[0])

    def _words(self, given: Part, found: Results, rows: int, chosen: list["_Keys"]) -> list[str]:
        words = [f"the gradient of {self.query} in {rows:,} rows"] if self.query in found else []
        of_keys = [path for path in (self.key, self.value) if path in found]
        if of_keys:
            queries = given.arguments.queries or 0
            all_rows = [keys for keys in chosen if len(keys.rows) == queries]
            late = [keys for keys in chosen if 0 < len(keys.rows) < queries]
            each = f" of {len(all_rows):,} of {len(chosen):,} elements of the batch" if len(chosen) > 1 else ""
            others = f", and at {len(late[0].keys):,} of the last {LATE:,} keys of the others" if late else ""
            gradients = "the gradients of" if len(of_keys) > 1 else "the gradient of"
            words.append(f"{gradients} {' and '.join(of_keys)} at {len(all_rows[0].keys):,} keys{each}{others}")
        return words


class _Keys(NamedTuple):
    """Keys of an element to judge, and the rows that contribute to their gradients."""

    keys: Numbers
    rows: range


_NO_KEYS = _Keys(np.arange(0), range(0))
