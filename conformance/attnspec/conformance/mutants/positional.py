"""Mutants of positional encodings.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``check`` raises for wrong shapes. ``x * x.dtype.type(0)`` leaves x out but keeps its shape. S0
to S4 are sources of the specification.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments
from attnspec.spec.contract.operation import Operation
from attnspec.spec.positional import AddPositions, ConcatPositions, LearnedPositions, SinusoidalPositionalEncoding


@mutant(
    "sines and cosines exchanged",
    replaces="interleave",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.unit-length-pairs", "positional.shift-is-rotation"),
    source="cosines at even columns",
)
def exchanged_sines_and_cosines(correct: Formulas, sines: Numbers, cosines: Numbers) -> Numbers:
    """Columns are cos, sin, cos, sin, … in place of sin, cos, …"""
    return Formulas.interleave(correct, cosines, sines)


@mutant(
    "halves instead of interleaved",
    replaces="interleave",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.unit-length-pairs", "positional.shift-is-rotation"),
    source="allenai/allennlp#2993, tatp22/multidim-positional-encoding#20",
)
def sines_then_cosines(correct: Formulas, sines: Numbers, cosines: Numbers) -> Numbers:
    """Columns are all sines, then all cosines, not interleaved."""
    return np.concatenate([sines, cosines], axis=-1)


@mutant(
    "positions from 1",
    replaces="positions",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.unit-length-pairs",),
    source="lucidrains/perceiver-pytorch#29",
)
def from_one(correct: Formulas, n: int) -> Numbers:
    """Positions are 1 … n in place of 0 … n−1."""
    return Formulas.positions(correct, n) + 1


@mutant(
    "base 1000",
    replaces="frequencies",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("operation.oracle",),
    source="maxjcohen/transformer#62",
)
def base_1000(correct: Formulas, d: int) -> Numbers:
    """The base is 1000 in place of 10000."""
    return Formulas.frequencies(correct, d) ** 0.75


@mutant(
    "exponent i/d for 2i/d",
    replaces="frequencies",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("operation.oracle",),
    source="S4 as printed; shenweichen/DeepCTR#379",
)
def half_exponent(correct: Formulas, d: int) -> Numbers:
    """Frequencies are 10000^(−i/d) in place of 10000^(−2i/d)."""
    return np.sqrt(Formulas.frequencies(correct, d))


@mutant(
    "frequencies spread over d/2 − 1 steps",
    replaces="frequencies",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("operation.oracle",),
    source="tensor2tensor: the last frequency is exactly 1/10000",
)
def closed_interval(correct: Formulas, d: int) -> Numbers:
    """Frequencies are 10000^(−i/(d/2 − 1)) in place of 10000^(−2i/d)."""
    pairs = (d + 1) // 2
    return 10000.0 ** (-np.arange(pairs) / max(pairs - 1, 1))


@mutant(
    "one frequency per column, not per pair",
    replaces="sinusoidal_positional_encoding",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.unit-length-pairs", "positional.shift-is-rotation"),
    source="Kyubyong/transformer#38, maxjcohen/transformer#62",
)
def next_frequency(correct: Formulas, n: int, d: int) -> Numbers:
    """Every column i has its own frequency 10000^(−i/d), not every pair."""
    column = np.arange(d)
    angle = np.arange(n)[:, None] * 10000.0 ** (-column / d)
    return np.where(column % 2, np.cos(angle), np.sin(angle)).astype(correct.default)


@mutant(
    "positions relative to the length",
    replaces="positions",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.prefix-unchanged",),
    source="positions scaled to the length of training",
)
def positions_relative_to_length(correct: Formulas, n: int) -> Numbers:
    """Positions t become t·64/n: they depend on the length n."""
    return Formulas.positions(correct, n) * (64 / max(n, 1))


@mutant(
    "positions modulo 16",
    replaces="positions",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.distinct-positions", "positional.shift-is-rotation"),
    source="a table of a fixed length that is read cyclically",
)
def positions_modulo_16(correct: Formulas, n: int) -> Numbers:
    """Position t is encoded as t mod 16."""
    return Formulas.positions(correct, n) % 16


@mutant(
    "frequencies rounded to float16",
    replaces="frequencies",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("operation.oracle",),
    source="the whole model cast to half precision, tables included",
)
def half_angles(correct: Formulas, d: int) -> Numbers:
    """Frequencies of the encoding are rounded to float16."""
    return Formulas.frequencies(correct, d).astype(np.float16).astype(np.float64)


@mutant(
    "encoding scaled by √2",
    replaces="interleave",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.unit-length-pairs",),
    source="encodings normalised to unit variance",
)
def scaled_encoding(correct: Formulas, sines: Numbers, cosines: Numbers) -> Numbers:
    """Sines and cosines are multiplied by √2."""
    return np.sqrt(2) * Formulas.interleave(correct, sines, cosines)


@mutant(
    "encodings rounded to float16",
    replaces="interleave",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("positional.unit-length-pairs", "operation.oracle"),
    source="tables stored in the dtype of the model and returned as float32",
)
def stored_in_float16(correct: Formulas, sines: Numbers, cosines: Numbers) -> Numbers:
    """A float32 encoding holds sines and cosines rounded to float16."""
    return Formulas.interleave(correct, sines, cosines).astype(np.float16).astype(np.float64)


@mutant(
    "embeddings scaled by √d",
    replaces="add_positions",
    operations=(AddPositions,),
    breaks=("positional.adding-zero", "operation.oracle"),
    source="Vaswani 2017, 3.4: the embedding's scale, applied twice",
)
def scaled_embeddings(correct: Formulas, x: Numbers, p: Numbers) -> Numbers:
    """√d x + p is returned in place of x + p."""
    return x * np.sqrt(x.dtype.type(x.shape[-1])) + p


@mutant(
    "positions from the end",
    replaces="add_positions",
    operations=(AddPositions,),
    breaks=("positional.adding-zero", "attention.permutation-equivariance"),
    source="left padding, with positions for right padding",
)
def from_the_end(correct: Formulas, x: Numbers, p: Numbers) -> Numbers:
    """Positions are added in reverse order."""
    return x + p[::-1]


@mutant(
    "positions of the first sequence only",
    replaces="add_positions",
    operations=(AddPositions,),
    breaks=("operation.batch-invariance", "operation.oracle"),
    source="x[0] += p",
)
def first_sequence_only(correct: Formulas, x: Numbers, p: Numbers) -> Numbers:
    """Positions are added to the first sequence of a batch only."""
    if x.ndim < 3 or not len(x):
        return x + p
    factor = np.zeros((len(x), *[1] * (x.ndim - 1)), x.dtype)
    factor[0] = 1
    return x + p * factor


@mutant(
    "positions before embeddings",
    replaces="concat_positions",
    operations=(ConcatPositions,),
    breaks=("seq2seq.concatenation-order", "operation.oracle"),
    source="torch.cat in the other order",
)
def positions_first(correct: Formulas, x: Numbers, p: Numbers) -> Numbers:
    """[P; X] is returned in place of [X; P]."""
    both = Formulas.concat_positions(correct, x, p)
    return np.concatenate([both[..., x.shape[-1] :], both[..., : x.shape[-1]]], axis=-1)


@mutant(
    "first position used everywhere",
    replaces="concat_positions",
    operations=(ConcatPositions,),
    breaks=("seq2seq.concatenation-order", "operation.gradient"),
    source="p[:1], broadcast",
)
def first_position_only(correct: Formulas, x: Numbers, p: Numbers) -> Numbers:
    """Every position gets the first row of P."""
    return Formulas.concat_positions(correct, x, p[:1] + p * p.dtype.type(0))


@mutant(
    "learned positions from 1",
    replaces="first_rows",
    operations=(LearnedPositions,),
    breaks=("seq2seq.embedding-is-table-row", "operation.oracle", "operation.gradient"),
    source="row 0 kept for padding, as in fairseq",
)
def rows_from_one(correct: Formulas, table: Numbers, n: int) -> Numbers:
    """Position t gets row t + 1 of the table, or its last row."""
    return table[np.minimum(np.arange(n) + 1, len(table) - 1)]


@mutant(
    "the last rows of the table",
    replaces="first_rows",
    operations=(LearnedPositions,),
    breaks=("seq2seq.embedding-is-table-row", "operation.oracle"),
    source="table[-n:] for left padding",
)
def last_rows(correct: Formulas, table: Numbers, n: int) -> Numbers:
    """The last n rows of the table are returned, not the first n."""
    return table[len(table) - n :]


@mutant(
    "too short position table accepted",
    replaces="check",
    operations=(LearnedPositions,),
    breaks=("operation.rejection",),
    source="table[:n], which is shorter than n without a word",
)
def short_table_accepted(correct: Library, operation: Operation, arguments: Arguments) -> None:
    """A table with fewer than n rows does not raise: fewer than n rows are returned."""


@mutant(
    "gradient for unused rows",
    replaces="first_rows",
    operations=(LearnedPositions,),
    breaks=("operation.gradient",),
    source="the whole table added and cut off afterwards",
)
def spread_gradient(correct: Formulas, table: Numbers, n: int) -> Numbers:
    """Rows of the table beyond n get the gradient of the first row."""
    if not isinstance(table, Tape) or not n:
        return Formulas.first_rows(correct, table, n)

    def backward(g: Numbers) -> list[Numbers]:
        return [np.concatenate([g, np.repeat(g[:1], len(table) - n, axis=0)])]

    return Tape(table.value[:n], [table], backward)
