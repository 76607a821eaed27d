"""Correct formulas of attention kernels: grouped heads, packed and paged sequences."""

from itertools import pairwise
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.attention import Attention
from attnspec.conformance.mutants.correct.positional import Positional
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.reference.defining.choices import choice, choosing


class Kernels(Positional, Attention):
    """Grouped heads with options, packed and paged sequences, latent keys, merging of partial results."""

    def grouped_query_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
        scale: Any = None,
        window: Any = None,
        softcap: Any = None,
        bias: Numbers = None,
        slopes: Numbers = None,
        sinks: Numbers = None,
        key_lengths: Numbers = None,
    ) -> Numbers:
        """The output of every head, and the log-sum-exp of its scores."""
        if key_lengths is not None and choice("length_alignment") == "at-length":
            return self.aligned_at_lengths(
                query, key, value, key_lengths, mask=mask, causal=causal, scale=scale, window=window, softcap=softcap,
                bias=bias, slopes=slopes, sinks=sinks,
            )  # fmt: skip
        n, m, group = query.shape[-2], key.shape[-2], query.shape[-3] // key.shape[-3]
        keys, values = self.repeat_heads(key, group), self.repeat_heads(value, group)
        products = self.scaled_by(self.dot_scores(query, keys), query.shape[-1], scale)
        attendable = self.join_masks(self.attendable(mask, causal, n, m), window, key_lengths, n, m)
        if attendable is not None:
            attendable = attendable[..., None, :, :]
        scores = self.biased(products, softcap, bias, slopes, attendable)
        if sinks is None:
            _, output = self.weighted(scores, values, attendable)
        else:
            _, output = self.with_sink(scores, values, attendable, sinks)
        logarithms = self.in_chosen_base(self.log_sum_exps(scores, attendable, sinks))
        return output, np.broadcast_to(logarithms, output.shape[:-1])

    def attention_weights(self, query: Numbers, key: Numbers, **options: Any) -> Numbers:
        """The weights of every head: its output for values that are the identity matrix."""
        identity = np.broadcast_to(np.eye(key.shape[-2], dtype=value_of(key).dtype), (*key.shape[:-1], key.shape[-2]))
        return self.grouped_query_attention(query, key, identity, **options)[0]

    def aligned_at_lengths(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        lengths: Numbers,
        *,
        mask: Numbers = None,
        bias: Numbers = None,
        **options: Any,
    ) -> Numbers:
        """Attention whose last query is at the end of each length: each length alone, aligned bottom right."""
        m = key.shape[-2]
        self.check_lengths(lengths, m)
        output = logarithms = query.dtype.type(0)
        for length in np.unique(lengths) if lengths.size else (m,):
            cut_mask, cut_bias = (x if x is None or x.shape[-1] != m else x[..., :length] for x in (mask, bias))
            with choosing(causal_alignment="bottom-right"):
                result = self.grouped_query_attention(
                    query, key[..., :length, :], value[..., :length, :], mask=cut_mask, bias=cut_bias, **options
                )
            here = (lengths == length)[..., None, None]
            output, logarithms = np.where(here[..., None], result[0], output), np.where(here, result[1], logarithms)
        return output, logarithms

    def repeat_heads(self, x: Numbers, group: int) -> Numbers:
        """Repeat keys or values for every query head: head r uses head r // group, or r mod heads_k."""
        if choice("head_groups") == "interleaved":
            every = np.arange(group * x.shape[-3]) % x.shape[-3]
            return np.moveaxis(np.moveaxis(x, -3, 0)[every], 0, -3)
        return np.repeat(x, group, axis=-3)

    def scaled_by(self, scores: Numbers, d: int, scale: Any) -> Numbers:
        """Scores times ``scale``, or divided by √d if it is None."""
        return self.scale_scores(scores, d) if scale is None else scores * scores.dtype.type(scale)

    def join_masks(self, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
        """Join the masks of window and lengths with ``mask``; None if nothing is masked."""
        masks = [mask]
        if window is not None:
            masks.append(self.build_aligned(self.sliding_window_mask, n, m, window=window))
        if lengths is not None:
            masks.append(self.padding_mask(lengths, m)[..., None, :])
        present = [x for x in masks if x is not None]
        return np.logical_and.reduce(np.broadcast_arrays(*present)) if present else None

    def biased(self, scores: Numbers, softcap: Any, bias: Numbers, slopes: Numbers, attendable: Numbers) -> Numbers:
        """Scores, capped first, then with biases added; the mask is applied later."""
        scores = self.capped(scores, softcap)
        if bias is not None:
            scores = scores + bias
        return scores if slopes is None else scores - self.linear_bias(slopes, *scores.shape[-2:])

    def capped(self, scores: Numbers, softcap: Any) -> Numbers:
        """Scores s, capped to c tanh(s/c)."""
        return scores if softcap is None else np.tanh(scores / scores.dtype.type(softcap)) * scores.dtype.type(softcap)

    def linear_bias(self, slopes: Numbers, n: int, m: int) -> Numbers:
        """ALiBi penalty: slope of the head times the distance of the key."""
        return slopes[:, None, None] * self.build_aligned(self.distances, n, m).astype(slopes.dtype)

    def distances(self, n: int, m: int) -> Numbers:
        """|i − j| for every query i and key j; i − j if ``alibi_distances`` is "signed"."""
        return self.distance(np.arange(n)[:, None] - np.arange(m))

    def distance(self, behind: Numbers) -> Numbers:
        """|i − j| of positions i − j; themselves if ``alibi_distances`` is "signed"."""
        return behind if choice("alibi_distances") == "signed" else np.abs(behind)

    def weighted(self, scores: Numbers, values: Numbers, attendable: Numbers) -> tuple[Numbers, Numbers]:
        """Softmax weights, and the weighted sums of values."""
        weights = self.softmax(scores, mask=attendable)
        return weights, self.pool(weights, values, attendable)

    def with_sink(
        self, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Weights and outputs with a sink: an additional score per row without a value."""
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
        allowed = np.True_ if attendable is None else attendable
        mask = np.broadcast_to(allowed, np.broadcast_shapes(scores.shape, allowed.shape))
        column = np.broadcast_to(column, (*mask.shape[:-1], 1))
        extended = np.concatenate([np.broadcast_to(scores, mask.shape), column], axis=-1)
        weights = self.softmax(extended, mask=np.concatenate([mask, np.ones((*mask.shape[:-1], 1), bool)], axis=-1))
        weights = weights[..., : scores.shape[-1]]
        return weights, self.pool(weights, values, mask)

    def in_chosen_base(self, logarithms: Numbers) -> Numbers:
        """Natural logarithms, to base 2 if that is chosen."""
        return logarithms if choice("logarithms") == "natural" else logarithms / logarithms.dtype.type(np.log(2))

    def natural(self, logarithms: Numbers) -> Numbers:
        """Undo ``in_chosen_base``."""
        return logarithms if choice("logarithms") == "natural" else logarithms * logarithms.dtype.type(np.log(2))

    def log_sum_exps(self, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
        """Log-sum-exps of the attendable scores of every row, the sink included."""
        masked = self.mask_scores(scores, attendable)
        if sinks is not None:
            column = np.broadcast_to(sinks[:, None, None], (*masked.shape[:-1], 1))
            masked = np.concatenate([masked, column], axis=-1)
        logarithms = self.log_sum_exp(masked)
        if sinks is None or choice("sink_alone") == "sink":
            return logarithms
        has_keys = np.any(np.ones(scores.shape[-1], bool) if attendable is None else attendable, axis=-1)
        return np.where(has_keys, logarithms, scores.dtype.type(-np.inf))

    def log_sum_exp(self, scores: Numbers) -> Numbers:
        """log Σ exp of every row; −∞ if every score is −∞."""
        shift = self.shift(scores)
        total = self.total(self.exponential(scores - value_of(shift)))
        empty = value_of(total) == 0
        finite = np.log(np.where(empty, scores.dtype.type(1), total)) + value_of(shift)
        return np.where(empty, scores.dtype.type(-np.inf), finite)[..., 0]

    def variable_length_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        query_ends: Numbers,
        key_ends: Numbers,
        *,
        key_lengths: Numbers = None,
        **options: Any,
    ) -> Numbers:
        """Outputs and log-sum-exps of packed sequences, computed one sequence at a time."""
        self.check_ends(query_ends, query.shape[-2])
        self.check_ends(key_ends, key.shape[-2])
        parts = [
            self.grouped_query_attention(query[..., i, :], key[..., j, :], value[..., j, :], **options)
            for i, j in zip(self.sequence_slices(query_ends), self.used_keys(key_ends, key_lengths), strict=True)
        ]
        outputs, logarithms = zip(*parts, strict=True)
        return np.concatenate(outputs, axis=-2), np.concatenate(logarithms, axis=-1)

    def sequence_slices(self, ends: Numbers) -> list[slice]:
        """One slice of positions per packed sequence."""
        return [slice(int(a), int(b)) for a, b in pairwise(ends)]

    def used_keys(self, ends: Numbers, lengths: Numbers) -> list[slice]:
        """One slice of keys per packed sequence: the first ones, if lengths are given."""
        slices = self.sequence_slices(ends)
        if lengths is None:
            return slices
        return [slice(x.start, min(x.stop, x.start + int(used))) for x, used in zip(slices, lengths, strict=True)]

    def check_ends(self, ends: Numbers, most: int) -> None:
        """Raise ``ValueError`` unless the ends rise from 0 to ``most`` without a decrease."""
        if ends[0] != 0 or ends[-1] != most or np.any(ends[1:] < ends[:-1]):
            raise ValueError(f"ends of sequences: expected integers from 0 to {most}, never falling; got {ends}")

    def paged_attention(
        self,
        query: Numbers,
        key_pages: Numbers,
        value_pages: Numbers,
        block_table: Numbers,
        key_lengths: Numbers,
        *,
        causal: bool = False,
        window: Any = None,
        slopes: Numbers = None,
        **options: Any,
    ) -> Numbers:
        """Attention to the rows of the pages, in the order of the table."""
        if np.any((block_table < 0) | (block_table >= len(key_pages))):
            raise ValueError(f"block_table: expected 0 to {len(key_pages) - 1}; got {block_table}")
        keys, values = self.gather_rows(key_pages, block_table), self.gather_rows(value_pages, block_table)
        n, m = query.shape[-2], keys.shape[-2]
        mask = self.cache_mask(key_lengths, n, m, causal, window)
        bias = None if slopes is None else self.cache_bias(slopes, key_lengths, n, m)
        return self.grouped_query_attention(query, keys, values, mask=mask, bias=bias, **options)

    def gather_rows(self, pages: Numbers, table: Numbers) -> Numbers:
        """Rows of the pages listed in the table, in its order."""
        rows = np.moveaxis(pages[table], -4, -3)
        *batch, blocks, page, d = rows.shape
        return rows.reshape(*batch, blocks * page, d)

    def cache_mask(self, lengths: Numbers, n: int, m: int, causal: bool, window: Any) -> Numbers:
        """Mask for n queries at the last n of ``lengths`` positions."""
        self.check_lengths(lengths, m)
        positions = self.query_positions(lengths, n)
        offset = np.arange(m) - positions
        left, right = self.window_sides(window)
        mask = np.arange(m) < lengths[..., None, None]
        mask = mask if left is None else mask & (offset >= -left)
        mask = mask if right is None else mask & (offset <= right)
        return mask & (offset <= 0) if causal else mask

    def cache_bias(self, slopes: Numbers, lengths: Numbers, n: int, m: int) -> Numbers:
        """Bias (…, heads, n, m) of slopes, for n queries at the last positions."""
        return -slopes[:, None, None] * self.cache_distances(lengths, n, m).astype(slopes.dtype)[..., None, :, :]

    def cache_distances(self, lengths: Numbers, n: int, m: int) -> Numbers:
        """Distances (…, n, m) of m keys from n queries at the last positions."""
        return self.distance(self.query_positions(lengths, n) - np.arange(m))

    def query_positions(self, lengths: Numbers, n: int) -> Numbers:
        """Positions (…, n, 1) of n queries at the end of ``lengths`` positions."""
        return lengths[..., None, None] - n + np.arange(n)[:, None]

    def latent_attention(
        self,
        query: Numbers,
        query_rope: Numbers,
        latent: Numbers,
        key_rope: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
        scale: Any = None,
    ) -> Numbers:
        """Attention whose keys and values of all heads are projected from one latent vector."""
        rows = latent[..., None, :, :]
        keys, values = self.project(rows, w_k), self.project(rows, w_v)
        rotated = self.dot_scores(query_rope, key_rope[..., None, :, :])
        scores = self.scaled_by(self.dot_scores(query, keys) + rotated, query.shape[-1] + query_rope.shape[-1], scale)
        return self.attend(scores, values, None if mask is None else mask[..., None, :, :], causal)

    def sigmoid_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
        bias: float = 0.0,
    ) -> Numbers:
        """Values weighted by the sigmoids of the scores of attendable keys."""
        scores = self.biased_scores(query, key, bias)
        attendable = self.attendable(mask, causal, *scores.shape[-2:])
        return self.pool(self.sigmoid_weights(scores, attendable), value, attendable)

    def biased_scores(self, query: Numbers, key: Numbers, bias: float) -> Numbers:
        """Scaled dot products and the bias."""
        scores = self.scaled_dot_scores(query, key)
        return scores + scores.dtype.type(bias)

    def sigmoid_weights(self, scores: Numbers, attendable: Numbers) -> Numbers:
        """Sigmoids of the scores, 0 where masked."""
        if attendable is None:
            return self.sigmoid_of_scores(scores)
        zero = scores.dtype.type(0)
        return np.where(attendable, self.sigmoid_of_scores(np.where(attendable, scores, zero)), zero)

    def sigmoid_of_scores(self, scores: Numbers) -> Numbers:
        """1/(1 + e⁻ˣ), from e^−|x|, which cannot overflow."""
        decayed, one = np.exp(-np.abs(scores)), scores.dtype.type(1)
        return np.where(scores >= 0, one, decayed) / (one + decayed)

    def merge_attention(self, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
        """Merge partial results, weighted by their sums of exponentials."""
        scores = self.natural(log_sum_exps)[..., None, :]
        nonempty = value_of(scores) != -np.inf
        merged = self.pool(self.softmax(scores, mask=nonempty), outputs, nonempty)[..., 0, :]
        logarithms = self.in_chosen_base(self.log_sum_exp(self.mask_scores(scores, nonempty))[..., 0])
        return merged, np.broadcast_to(logarithms, merged.shape[:-1])

    def rotary_embedding(self, x: Numbers, positions: Numbers = None, *, theta: float = 10000.0) -> Numbers:
        """Rotate pairs of features by the angle of their position."""
        n, d = x.shape[-2:]
        angle = self.angles(self.positions(n) if positions is None else positions.astype(np.float64), d, theta)
        return self.rotate_by(x, angle)

    def rotate_by(self, x: Numbers, angle: Numbers) -> Numbers:
        """Rotate pairs of features by their angles."""
        cosine, sine = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
        first, second = self.split_pairs(x)
        return self.join_pairs(*self.rotate(first, second, cosine, sine))

    def axial_rotary_embedding(self, x: Numbers, positions: Numbers, frequencies: Numbers) -> Numbers:
        """Rotate the first pairs of features by angles of several axes."""
        width = 2 * frequencies.shape[-1]
        rotated = self.rotate_by(x[..., :width], self.axial_angles(positions, frequencies))
        unrotated = np.broadcast_to(x[..., width:], (*rotated.shape[:-1], x.shape[-1] - width))
        return np.concatenate([rotated, unrotated], axis=-1)

    def axial_angles(self, positions: Numbers, frequencies: Numbers) -> Numbers:
        """The angle of every position and pair, summed over axes."""
        return np.sum(positions.astype(np.float64)[..., None] * frequencies.astype(np.float64), axis=-2)

    def rotary_frequencies(
        self,
        pairs: int,
        *,
        theta: float = 500_000.0,
        factor: float = 8.0,
        length: float = 8192.0,
        low: float = 1.0,
        high: float = 4.0,
    ) -> Numbers:
        """Unscaled frequencies, and those divided by the factor, mixed."""
        unscaled = self.unscaled_frequencies(pairs, theta)
        share = np.clip(self.ramp(unscaled, theta, length, low, high), 0, 1)
        return self.mix_frequencies(unscaled, share, factor).astype(self.default)

    def unscaled_frequencies(self, pairs: int, theta: float) -> Numbers:
        """The geometric frequencies of a rotary embedding."""
        return theta ** (-np.arange(pairs) / pairs)

    def mix_frequencies(self, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
        """The frequency of each pair, of which ``share`` is unscaled."""
        return share * unscaled + (1 - share) * unscaled / factor

    def ramp(self, unscaled: Numbers, theta: float, length: float, low: float, high: float) -> Numbers:
        """The share of the unscaled frequencies, not yet between 0 and 1."""
        if choice("rotary_ramp") == "rotations":
            return (length * unscaled / (2 * np.pi) - low) / (high - low)
        start, end = self.ramp_ends(len(unscaled), theta, length, low, high)
        if choice("rotary_ramp") == "whole-indices":
            start, end = np.floor(start), np.ceil(end)
        return self.ramp_between(start, end, len(unscaled))

    def ramp_ends(self, pairs: int, theta: float, length: float, low: float, high: float) -> tuple[float, float]:
        """Indices of the pairs that make ``high`` and ``low`` rotations."""
        start, end = (float(pairs * np.log(length / (2 * np.pi * turns)) / np.log(theta)) for turns in (high, low))
        return start, end

    def ramp_between(self, start: float, end: float, pairs: int) -> Numbers:
        """A share that falls from 1 at one index to 0 at another."""
        return (end - np.arange(pairs)) / (end - max(start, 0))

    def angles(self, positions: Numbers, d: int, theta: float) -> Numbers:
        """The angle of every position and pair."""
        return positions[..., None] * theta ** (-2 * np.arange(d // 2) / d)

    def rotate(self, first: Numbers, second: Numbers, cosine: Numbers, sine: Numbers) -> tuple[Numbers, Numbers]:
        """Both features of every pair, rotated."""
        return first * cosine - second * sine, first * sine + second * cosine

    def split_pairs(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """The first and the second feature of every pair."""
        if choice("rotary_pairs") == "halves":
            return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x[..., 0::2], x[..., 1::2]

    def join_pairs(self, first: Numbers, second: Numbers) -> Numbers:
        """Undo ``split_pairs``."""
        if choice("rotary_pairs") == "halves":
            return np.concatenate([first, second], axis=-1)
        both = np.stack([first, second], axis=-1)
        return both.reshape(*both.shape[:-2], 2 * both.shape[-2])

    def alibi_slopes(self, heads: int) -> Numbers:
        """Slopes for the greatest power of two ≤ ``heads``; further heads get slopes in between."""
        below = 2 ** int(np.floor(np.log2(heads)))
        first, others = np.arange(below), np.arange(heads - below)
        exponents = np.concatenate([8 * (first + 1) / below, 4 * (2 * others + 1) / below])
        return (2.0**-exponents).astype(self.default)

    def relative_position_bias(
        self,
        table: Numbers,
        query_positions: Numbers,
        key_positions: Numbers,
        *,
        bidirectional: bool = True,
        max_distance: int = 128,
    ) -> Numbers:
        """Bias of T5, from the bucket of every distance."""
        ahead = self.positions_ahead(query_positions, key_positions)
        bucket = self.distance_bucket(ahead, table.shape[0], bidirectional, max_distance)
        return np.moveaxis(self.bucket_rows(table, bucket), -1, -3)

    def positions_ahead(self, query_positions: Numbers, key_positions: Numbers) -> Numbers:
        """Positions of keys minus those of queries."""
        return key_positions[..., None, :] - query_positions[..., :, None]

    def distance_bucket(self, ahead: Numbers, buckets: int, bidirectional: bool, max_distance: int) -> Numbers:
        """The bucket of a distance; later keys have buckets of their own if ``bidirectional``."""
        if not bidirectional:
            return self.one_way_bucket(np.maximum(-ahead, 0), buckets, max_distance)
        return self.one_way_bucket(np.abs(ahead), buckets // 2, max_distance) + (ahead > 0) * (buckets // 2)

    def one_way_bucket(self, distance: Numbers, buckets: int, max_distance: int) -> Numbers:
        """The bucket in one direction: single distances first, then logarithmic ones."""
        exact = buckets // 2
        wide = exact + self.logarithmic_buckets(distance, exact, buckets - exact, max_distance)
        return np.where(distance < exact, distance, np.minimum(wide, buckets - 1))

    def logarithmic_buckets(self, distance: Numbers, exact: int, wide: int, max_distance: int) -> Numbers:
        """Whole buckets between ``exact`` and a distance."""
        ratio = np.log(np.maximum(distance, exact) / exact) / np.log(max_distance / exact)
        # A quotient of logarithms that is a whole number may be rounded to less.
        return np.floor(ratio * wide + 2.0**-32).astype(np.int64)

    def bucket_rows(self, table: Numbers, bucket: Numbers) -> Numbers:
        """The rows of a table."""
        return table[bucket]

    def sliding_window_mask(self, n: int, m: int, *, window: Any = None) -> Numbers:
        """True where a key lies within the window."""
        left, right = self.window_sides(window)
        behind = np.arange(m) - np.arange(n)[:, None]
        near = np.ones((n, m), bool) if left is None else behind >= -left
        return near if right is None else near & (behind <= right)

    def window_sides(self, window: Any) -> tuple[int | None, int | None]:
        """Keys before and after a query's position that a window allows; None for all."""
        left, right = (None, None) if window is None else window
        includes_own = choice("window_left") == "includes-own"
        return (left - 1 if left is not None and includes_own else left), right

    def document_mask(self, query_documents: Numbers, key_documents: Numbers) -> Numbers:
        """True where query and key belong to the same document."""
        return query_documents[..., :, None] == key_documents[..., None, :]

    def rolling_buffer_positions(self, lengths: Numbers, slots: int) -> Numbers:
        """The last position that each slot was written at."""
        last = lengths[..., None].astype(np.int64) - 1
        return self.of_written_slots(last - self.age_of_slots(last, np.arange(slots), slots))

    def age_of_slots(self, last: Numbers, slot: Numbers, slots: int) -> Numbers:
        """The number of positions written after the one in each slot."""
        return (last - slot) % slots

    def of_written_slots(self, positions: Numbers) -> Numbers:
        """Positions, −1 for slots that were never written."""
        return np.maximum(positions, -1)

    def positions_from_mask(self, mask: Numbers) -> Numbers:
        """Positions of tokens and of padding."""
        last = self.last_token(mask)
        return np.where(mask, last, self.position_of_padding(last))

    def last_token(self, mask: Numbers) -> Numbers:
        """Position of the last token up to each place, −1 without one."""
        return np.cumsum(mask, axis=-1) - 1

    def position_of_padding(self, last: Numbers) -> Numbers:
        """Positions of padding; ``last`` is that of the token before it."""
        of_padding = {"zero": 0, "one": 1, "previous": np.maximum(last, 0), "minus-one": -1}
        return of_padding[choice("padding_positions")] + 0 * last

    def tree_mask(self, parents: Numbers) -> Numbers:
        """True where a key is on the path from a root to the query."""
        n = parents.shape[-1]
        ancestors = np.array(np.broadcast_to(np.arange(n), parents.shape))
        mask = np.zeros((*parents.shape, n), bool)
        for _ in range(n):
            np.put_along_axis(mask, ancestors[..., None], True, axis=-1)
            above = np.take_along_axis(parents, ancestors, axis=-1)
            ancestors = np.where(self.is_earlier(above, ancestors), above, ancestors)
        return mask

    def is_earlier(self, parents: Numbers, tokens: Numbers) -> Numbers:
        """True for a parent, False for a number that makes the token a root."""
        return (parents >= 0) & (parents < tokens)

    def dropout(self, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
        """Kept weights divided by 1 − rate; dropped weights are 0."""
        scaled = weights / weights.dtype.type(1 - rate)
        return scaled if keep is None else np.where(keep, scaled, scaled.dtype.type(0))

    def gated_output(self, x: Numbers, gate: Numbers) -> Numbers:
        """The output times the gate, after its activation."""
        return x * self.output_gate(gate)

    def output_gate(self, gate: Numbers) -> Numbers:
        """Sigmoid of the gate, which never overflows: ½(1 + tanh ½g)."""
        half = gate.dtype.type(0.5)
        return half * (1 + np.tanh(half * gate))
