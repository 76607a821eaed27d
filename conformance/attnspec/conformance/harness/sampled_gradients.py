"""Comparison of sampled gradients of dot-product attention, for calls too large to judge fully."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import starmap
from math import prod
from typing import NamedTuple, Self

import numpy as np

from attnspec.conformance.harness.dot_gradients import Element, gradients_at, query_gradients
from attnspec.conformance.harness.expected import Expected, on_all_cores
from attnspec.conformance.harness.normalizers import Attendance, Scores
from attnspec.conformance.harness.parts import PAIRS_PER_ORACLE, Part, elements_with_gradients, pairs, with_rows
from attnspec.conformance.harness.record import Record
from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, take
from attnspec.conformance.judging.sampled_rows import sample_indices
from attnspec.conformance.judging.subject import Results
from attnspec.reference.scoring import dot_scores, scaled_dot_scores
from attnspec.spec.attention import DotProductAttention, ScaledDotProductAttention

SCORES: Mapping[type, Scores] = {DotProductAttention: dot_scores, ScaledDotProductAttention: scaled_dot_scores}
"""Score functions of the operations of the form softmax(scores(query, key)) value."""

MAX_PAIRS = 3 * 2**28
"""Query–key pairs computed for gradients of keys; one batch element is judged even if it has more."""

DOUBLE_COST = 4
"""Time per pair in double precision, as a multiple of that in single precision."""

KEYS_PER_ELEMENT = 16
"""Keys judged per element."""

LAST_KEYS = 256
"""Number of last keys to sample from in batch elements too slow to judge fully."""

OUTPUT = "the output"
"""Key of the output in mappings that otherwise hold gradients by path."""


class SampledGradients:
    """Judge of an operation's gradients, from samples of rows and keys."""

    def __init__(self, record: Record, scores: Scores, seed: int) -> None:
        self.record, self.subject, self.scores, self.seed = record, record.subject, scores, seed
        operation = self.subject.operation
        leaves = (operation.queries[0], operation.attended[0], operation.attended[-1])
        self.query, self.key, self.value = (leaf.path for leaf in leaves)

    @classmethod
    def of(cls, record: Record, seed: int) -> Self | None:
        """Return the judge; None if scores are not dot products.

        It is also None for float64, since the double-precision oracle would be no more precise than the results.
        """
        scores = SCORES.get(record.subject.operation.protocol)
        return None if scores is None or record.subject.dtype == "float64" else cls(record, scores, seed)

    def judge(self, call: Part, outputs: Results, gradients: Results, rows: Numbers, rng: np.random.Generator) -> None:
        """Judge gradients of queries in ``rows``, and gradients of keys and values at sampled keys."""
        output = outputs[self.subject.operation.leading.path]
        # The number of rows is so large that every yielded part is a single batch element.
        elements = list(elements_with_gradients(call, {**gradients, OUTPUT: output}, PAIRS_PER_ORACLE))
        chosen = self._chosen_keys(call, gradients, rng)
        # The slowest jobs start first, so that no thread is still busy with one when all others are idle.
        jobs = [(part, part_gradients, keys) for (part, part_gradients), keys in zip(elements, chosen, strict=True)]
        jobs.sort(key=lambda job: len(job[-1].rows), reverse=True)
        with on_all_cores() as map_parts:
            expectations = list(map_parts(lambda job: self._expected(job[0], job[1], job[2], rows), jobs))
        for (part, part_gradients, keys), expected in zip(jobs, expectations, strict=True):
            ordered = partial(self._expected, part, part_gradients, keys, rows, ordered=True)
            for path, right in expected.items():
                positions = rows if path == self.query else keys.keys
                self._compare(path, part_gradients[path], right, part, positions, rows, ordered)
        self.record.judged += self._summary(call, gradients, len(rows), chosen)

    def _chosen_keys(self, call: Part, gradients: Results, rng: np.random.Generator) -> list["_ChosenKeys"]:
        """Choose the keys to judge in every batch element.

        As many elements as are affordable get keys sampled from all positions. Under causal attention the others get
        keys from the last ``LAST_KEYS``, whose gradients come from few rows. Otherwise the others get no keys.
        """
        arguments = call.arguments
        n, m, count = arguments.queries or 0, arguments.keys_count or 0, prod(arguments.batch)
        if not {self.key, self.value} & {*gradients}:
            return [_NO_KEYS] * count
        affordable = self._affordable(call)
        # Consecutive seeds choose consecutive elements, and so cover all of them.
        full_elements = {(self.seed * affordable + i) % count for i in range(min(affordable, count))}
        offset = self._offset(arguments) if arguments.causal else None
        late_keys = _NO_KEYS
        if offset is not None:
            last = int(np.clip(n + offset, 0, m))
            first = max(last - LAST_KEYS, 0)
            if last - first >= KEYS_PER_ELEMENT:
                sampled = first + sample_indices(last - first, KEYS_PER_ELEMENT, rng)
                late_keys = _ChosenKeys(sampled, range(max(first - offset, 0), n))
        return [
            _ChosenKeys(sample_indices(m, KEYS_PER_ELEMENT, rng), range(n)) if i in full_elements else late_keys
            for i in range(count)
        ]

    def _affordable(self, call: Part) -> int:
        """Return the number of batch elements that fit into ``MAX_PAIRS``, at least 1."""
        arguments = call.arguments
        # Causal attention has half the pairs. Right numbers for 16-bit dtypes are computed in single precision.
        pairs_per_element = pairs(arguments) // max(prod(arguments.batch), 1) // (2 if arguments.causal else 1)
        return max(MAX_PAIRS // (pairs_per_element * (DOUBLE_COST if self.subject.dtype == "float32" else 1)), 1)

    def _expected(
        self, part: Part, gradients: Results, keys: "_ChosenKeys", rows: Numbers, *, ordered: bool = False
    ) -> dict[str, Expected]:
        """Right gradients by path; ``ordered`` ones have budgets that follow partial sums."""
        arguments, p = part.arguments, self.subject.precision
        query, key, value = (arguments.array(path) for path in (self.query, self.key, self.value))
        cotangent = part.results[self.subject.operation.leading.path]
        shape = (len(query), len(key))
        attendance = Attendance(shape, arguments.mask, self._offset(arguments) if arguments.causal else None)
        expected: dict[str, Expected] = {}
        if self.query in gradients:
            allowed = attendance.of_rows(rows)
            operands = (query[rows], key, value, cotangent[rows])
            expected[self.query] = Expected(*query_gradients(operands, allowed, self.scores, p, ordered=ordered))
        if len(keys.keys):
            element = Element(query, key, value, cotangent, gradients[OUTPUT], attendance).from_row(keys.rows.start)
            of_keys = starmap(Expected, gradients_at(keys.keys, element, self.scores, p, ordered=ordered))
            expected |= {path: x for path, x in zip((self.key, self.value), of_keys, strict=True) if path in gradients}
        return expected

    def _offset(self, arguments: Arguments) -> int:
        """Return the offset of causal attention: row i attends to keys j ≤ i + offset."""
        return (arguments.keys_count or 0) - (arguments.queries or 0) if self.subject.semantics.bottom_right else 0

    def _compare(
        self,
        path: str,
        gradient: Numbers,
        expected: Expected,
        part: Part,
        positions: Numbers,
        rows: Numbers,
        ordered: Callable[[], dict[str, Expected]],
    ) -> None:
        leaf, operation = part.arguments.leaves[path], self.subject.operation
        size = (operation.query_size if path == self.query else operation.key_size) or ""
        gradient = along(gradient, leaf, size, part.arguments.binding, take(positions))
        # Messages call the oracle, affordable for ``rows`` only; ``positions`` are this gradient's queries or keys.
        sample = replace(with_rows(self.subject, part, rows), rows=positions)
        self.record.compare(
            gradient,
            expected,
            sample,
            f"the gradient of {path}",
            len(leaf.core) + leaf.axes(size)[0],
            ordered=lambda _: ordered()[path],
        )

    def _summary(self, call: Part, gradients: Results, rows: int, chosen: list["_ChosenKeys"]) -> list[str]:
        phrases = [f"the gradient of {self.query} in {rows:,} rows"] if self.query in gradients else []
        of_keys = [path for path in (self.key, self.value) if path in gradients]
        if of_keys:
            queries = call.arguments.queries or 0
            all_rows = [keys for keys in chosen if len(keys.rows) == queries]
            late = [keys for keys in chosen if 0 < len(keys.rows) < queries]
            extent = f" of {len(all_rows):,} of {len(chosen):,} elements of the batch" if len(chosen) > 1 else ""
            late_extent = f", and at {len(late[0].keys):,} of the last {LAST_KEYS:,} keys of the others" if late else ""
            noun = "the gradients of" if len(of_keys) > 1 else "the gradient of"
            phrases.append(f"{noun} {' and '.join(of_keys)} at {len(all_rows[0].keys):,} keys{extent}{late_extent}")
        return phrases


class _ChosenKeys(NamedTuple):
    """Keys of a batch element to judge, and the rows that contribute to their gradients."""

    keys: Numbers
    rows: range


_NO_KEYS = _ChosenKeys(np.arange(0), range(0))
