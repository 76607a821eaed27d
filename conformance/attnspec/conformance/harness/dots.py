"""Gradients of the attentions whose scores are dot products, at sizes of models: of some rows, and of some keys."""

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
"""The operations softmax(scores(query, key)) value."""

ALL_PAIRS = 3 * 2**28
"""Pairs of which the scores are computed for the gradients of keys: those of one element of the batch at least."""

DOUBLE = 4
"""How many pairs in single precision take the time of one in double."""

KEYS = 16
"""Keys of an element that are judged."""

LATE = 256
"""Keys at the end that are judged where others are too dear."""

OUTPUT = "the output"
"""What the output is called beside gradients."""


class Dots:
    """The judge of gradients of one operation with such scores."""

    def __init__(self, record: Record, scores: Scores, seed: int) -> None:
        self.record, self.subject, self.scores, self.seed = record, record.subject, scores, seed
        operation = self.subject.operation
        self.query, self.key, self.value = (
            leaf.path for leaf in (operation.queries[0], operation.attended[0], operation.attended[-1])
        )

    @classmethod
    def of(cls, record: Record, seed: int) -> Self | None:
        """The judge; None where scores are no dot products, or where double precision is not enough."""
        scores = SCORES.get(record.subject.operation.protocol)
        return None if scores is None or record.subject.dtype == "float64" else cls(record, scores, seed)

    def judge(self, given: Part, outputs: Results, found: Results, rows: Numbers, rng: np.random.Generator) -> None:
        """Judge the gradients of queries in these rows, those of keys and values at keys that are chosen here."""
        output = outputs[self.subject.operation.leading.path]
        # Pairs without end: elements come one by one.
        whole = list(of_elements(given, {**found, OUTPUT: output}, AT_ONCE))
        chosen = self._keys(given, found, rng)
        # The dearest first, so that no thread has one left at the end.
        jobs = sorted(zip(whole, chosen, strict=True), key=lambda job: len(job[1].rows), reverse=True)
        # Threads of the BLAS would wait for one another beside ours.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as threads:
            done = list(threads.map(lambda job: self._expected(job[0][0], job[0][1], rows, job[1]), jobs))
        for ((part, own), keys), expected in zip(jobs, done, strict=True):
            for path, wanted in expected.items():
                self._compare(path, own[path], wanted, part, rows if path == self.query else keys.keys, rows)
        self.record.judged += self._words(given, found, len(rows), chosen)

    def _keys(self, given: Part, found: Results, rng: np.random.Generator) -> list["_Keys"]:
        """The keys to judge of every element: of as many as are affordable any keys, of the others late ones.

        Where attention is causal, late keys have gradients from few rows. Elsewhere they have them from all, and no
        keys of the other elements are judged.
        """
        arguments = given.arguments
        n, m, count = arguments.queries or 0, arguments.keys_count or 0, prod(arguments.batch)
        if not {self.key, self.value} & {*found}:
            return [_NO_KEYS] * count
        most = self._affordable(given)
        # So that the seeds that follow one another come to all elements.
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
        """How many elements of the batch the pairs are computed of."""
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
        """How many keys beyond its own place a row attends to where attention is causal."""
        return (arguments.keys_count or 0) - (arguments.queries or 0) if self.subject.semantics.bottom_right else 0

    def _compare(self, path: str, got: Numbers, wanted: Expected, part: Part, at: Numbers, rows: Numbers) -> None:
        leaf, operation = part.arguments.leaves[path], self.subject.operation
        size = (operation.asking if path == self.query else operation.asked) or ""
        got = along(got, leaf, size, part.arguments.binding, take(at))
        # Of a whole element the oracle would ask too much.
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
    """The keys of an element that are judged, and the rows from which they have their gradients."""

    keys: Numbers
    rows: range


_NO_KEYS = _Keys(np.arange(0), range(0))
