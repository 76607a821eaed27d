"""Mutants that store positions, windows, tokens, table entries or lengths in too narrow dtypes.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``prepare`` converts the arguments.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, changed
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import bind
from attnspec.spec.kernels import (
    AxialRotaryEmbedding,
    DocumentMask,
    GroupedQueryAttention,
    PagedAttention,
    RotaryEmbedding,
    SlidingWindowMask,
    VariableLengthAttention,
)
from attnspec.spec.seq2seq import DecoderStep, Embed, GreedyDecode, OutputDistribution
from attnspec.spec.transformer import DecoderOnly, EncoderDecoder


def _wrap(x: Numbers, dtype: str) -> Numbers:
    """Convert integers to a narrow dtype and back; they wrap around."""
    return x.astype(dtype).astype(np.int64)


def _wrap_indices(table: Numbers, dtype: str, count: int) -> Numbers:
    """Convert indices to a narrow dtype and back, modulo ``count`` rows."""
    return _wrap(table, dtype) % max(count, 1)


# Positions ------------------------------------------------------------------------------------------------------------


@mutant(
    "rotary positions in float16",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="NVIDIA/Megatron-LM#535: seq.type_as(inv_freq), which makes neighbours the same from 2,048 on",
)
def positions_in_float16(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions are rounded to float16: odd ones beyond 2,048 become even, huge ones infinite."""
    return Formulas.angles(correct, rounded(positions, "float16"), d, theta)


@mutant(
    "rotary positions in bfloat16",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="huggingface/candle#3520: the vector of positions cast to the dtype of the model",
)
def positions_in_bfloat16(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions are rounded to bfloat16, which holds all integers up to 256 only."""
    return Formulas.angles(correct, rounded(positions, "bfloat16"), d, theta)


@mutant(
    "rotary angles of float64 inputs in float32",
    replaces="angles",
    operations=(RotaryEmbedding,),
    dtype="float64",
    breaks=("operation.oracle",),
    source="huggingface/transformers#25681: frequencies that are made in float32, whatever the dtype",
)
def single_angles(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Angles are rounded to float32: at late positions they lose their fraction."""
    return rounded(Formulas.angles(correct, positions, d, theta), "float32")


@mutant(
    "rotary positions in int16",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="positions packed with other fields of a request",
)
def positions_in_15_bits(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions are signed 16-bit integers: 32,768 becomes −32,768."""
    return Formulas.angles(correct, positions.astype(np.int64).astype(np.int16).astype(np.float64), d, theta)


@mutant(
    "rotary table of 4,096 positions",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="a table for the length of training, whose last row is read for every later position",
)
def table_of_4096(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions from 4,096 on get the angles of position 4,095."""
    return Formulas.angles(correct, np.minimum(positions, 4095.0), d, theta)


@mutant(
    "axial positions in bfloat16",
    replaces="axial_angles",
    operations=(AxialRotaryEmbedding,),
    breaks=("operation.oracle",),
    source="positions cast to the dtype of the frequencies",
)
def axial_positions_in_bfloat16(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Positions are rounded to bfloat16, which holds all integers up to 256 only."""
    return Formulas.axial_angles(correct, rounded(positions.astype(np.float64), "bfloat16"), frequencies)


# Windows and documents ------------------------------------------------------------------------------------------------


def _narrow_window(window: Any, dtype: str) -> Any:
    ends = (None, None) if window is None else window
    return tuple(None if end is None else int(np.int64(end).astype(dtype)) for end in ends)


@mutant(
    "ends of a window in uint8",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, SlidingWindowMask, VariableLengthAttention),
    breaks=("operation.oracle",),
    source="a window packed into a byte of a kernel's flags",
)
def window_in_a_byte(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """Ends of a window are stored in 8 bits: 256 becomes 0."""
    return Formulas.sliding_window_mask(correct, n, m, window=_narrow_window(window, "uint8"))


@mutant(
    "ends of a window in int8",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, SlidingWindowMask),
    breaks=("operation.oracle",),
    source="a window passed as int8, where −1 means no window",
)
def window_in_a_signed_byte(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """Ends of a window are stored in signed bytes: 256 becomes 0, and 130 becomes −126."""
    return Formulas.sliding_window_mask(correct, n, m, window=_narrow_window(window, "int8"))


@mutant(
    "ends of a window in uint16",
    replaces="sliding_window_mask",
    operations=(SlidingWindowMask,),
    breaks=("operation.oracle",),
    source="a window of 65,536 tokens, as of long contexts, in 16 bits",
)
def window_in_16_bits(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """Ends of a window are stored in 16 bits: 65,536 becomes 0."""
    return Formulas.sliding_window_mask(correct, n, m, window=_narrow_window(window, "uint16"))


@mutant(
    "window of at most 255 keys",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, VariableLengthAttention),
    breaks=("sizes.large-sizes",),
    profile="full",
    source="a reach that saturates where a byte ends",
)
def saturated_window(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """Ends of a window beyond 255 are cut to 255."""
    ends = (None, None) if window is None else window
    most = tuple(None if end is None else min(end, 255) for end in ends)
    return Formulas.sliding_window_mask(correct, n, m, window=most)


@mutant(
    "documents in int16",
    replaces="document_mask",
    operations=(DocumentMask,),
    breaks=("kernels.window-and-document-masks",),
    source="identifiers of documents hashed to the width of a mask's tile",
)
def documents_in_16_bits(correct: Formulas, query_documents: Numbers, key_documents: Numbers) -> Numbers:
    """Documents whose numbers differ by 65,536 count as the same document."""
    return Formulas.document_mask(correct, _wrap(query_documents, "int16"), _wrap(key_documents, "int16"))


@mutant(
    "documents in float32",
    replaces="document_mask",
    operations=(DocumentMask,),
    breaks=("kernels.window-and-document-masks",),
    source="identifiers compared as floats, because a kernel has no integers",
)
def documents_in_single(correct: Formulas, query_documents: Numbers, key_documents: Numbers) -> Numbers:
    """Document numbers are float32: from 2²⁴ on, neighbouring numbers count as the same document."""
    return Formulas.document_mask(correct, query_documents.astype(np.float32), key_documents.astype(np.float32))


# Pages ----------------------------------------------------------------------------------------------------------------


def _gather_by_narrow_table(correct: Formulas, pages: Numbers, table: Numbers, dtype: str) -> Numbers:
    return Formulas.gather_rows(correct, pages, _wrap_indices(table, dtype, len(pages)))


@mutant(
    "block table in uint8",
    replaces="gather_rows",
    operations=(PagedAttention,),
    breaks=("sizes.model-sizes",),
    source="tenstorrent/tt-metal#57364: entries of a page table read by another width than they are stored with",
)
def table_in_bytes(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Page numbers are stored in 8 bits: page 256 is read as page 0."""
    return _gather_by_narrow_table(correct, pages, table, "uint8")


@mutant(
    "block table in int8",
    replaces="gather_rows",
    operations=(PagedAttention,),
    breaks=("sizes.model-sizes",),
    source="a page table that was moved with the quantized cache",
)
def table_in_signed_bytes(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Page numbers are signed bytes: page 128 is counted from the end of the cache."""
    return _gather_by_narrow_table(correct, pages, table, "int8")


@mutant(
    "block table in int16",
    replaces="gather_rows",
    operations=(PagedAttention,),
    breaks=("sizes.model-sizes",),
    source="tenstorrent/tt-metal#57364: page tables of 16 bits, read as signed",
)
def table_in_15_bits(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Page numbers are signed 16-bit integers: page 32,768 is counted from the end of the cache."""
    return _gather_by_narrow_table(correct, pages, table, "int16")


@mutant(
    "rows of a page read modulo 64",
    replaces="gather_rows",
    operations=(PagedAttention,),
    breaks=("operation.oracle",),
    source="vllm-project/vllm#54359: kernels that read pages of a fixed size, beside a larger one that is declared",
)
def pages_of_64_rows(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Rows of a page wrap around at 64: row 64 is read as row 0."""
    rows = np.arange(pages.shape[-2]) % 64
    return Formulas.gather_rows(correct, pages[..., rows, :], table)


@mutant(
    "rows of a page read modulo 128",
    replaces="gather_rows",
    operations=(PagedAttention,),
    breaks=("operation.oracle",),
    source="an offset within a page that is packed beside its number",
)
def rows_in_seven_bits(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Rows of a page wrap around at 128: row 128 is read as row 0."""
    rows = np.arange(pages.shape[-2]) % 128
    return Formulas.gather_rows(correct, pages[..., rows, :], table)


@mutant(
    "cached positions in int8",
    replaces="query_positions",
    operations=(PagedAttention,),
    breaks=("operation.oracle",),
    source="positions of queries that are stored with the draft tokens of a speculative step",
)
def cached_in_bytes(correct: Formulas, lengths: Numbers, n: int) -> Numbers:
    """Positions of queries in the cache are signed bytes: 128 becomes −128."""
    return _wrap(Formulas.query_positions(correct, lengths, n), "int8")


@mutant(
    "ends of packed sequences in int8",
    replaces="sequence_slices",
    operations=(VariableLengthAttention,),
    breaks=("operation.oracle",),
    profile="full",
    source="cumulative lengths in the dtype of the lengths that were added up",
)
def ends_in_bytes(correct: Formulas, ends: Numbers) -> list[slice]:
    """Ends of packed sequences are signed bytes: ends from 128 on wrap around."""
    last = int(ends[-1])
    moved = np.maximum(_wrap(ends, "int8"), 0)
    moved[0], moved[-1] = 0, last
    return Formulas.sequence_slices(correct, np.maximum.accumulate(moved))


# Tokens ---------------------------------------------------------------------------------------------------------------


@mutant(
    "tokens in uint8",
    replaces="table_rows",
    operations=(Embed, DecoderOnly),
    breaks=("operation.oracle",),
    source="a tokenizer of characters whose vocabulary grew",
)
def tokens_in_bytes(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """Tokens are stored in 8 bits: token 256 is read as token 0."""
    return Formulas.table_rows(correct, table, _wrap_indices(tokens, "uint8", len(table)))


@mutant(
    "tokens in int16",
    replaces="table_rows",
    operations=(Embed, DecoderStep, DecoderOnly, EncoderDecoder),
    breaks=("sizes.model-sizes",),
    source="token files of int16, as for a vocabulary of 32,000, with one of 50,257",
)
def tokens_in_15_bits(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """Tokens are signed 16-bit integers: token 32,768 is counted from the end of the vocabulary."""
    return Formulas.table_rows(correct, table, _wrap_indices(tokens, "int16", len(table)))


@mutant(
    "tokens in float16",
    replaces="table_rows",
    operations=(Embed, DecoderOnly),
    breaks=("sizes.model-sizes",),
    source="token indices converted with the model's other inputs by .half()",
)
def tokens_in_float16(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """Tokens are float16: those beyond 2,048 are rounded."""
    halves = tokens.astype(np.float16).astype(np.float64)
    return Formulas.table_rows(correct, table, np.minimum(halves, len(table) - 1).astype(np.int64))


@mutant(
    "last partial tile of 4,096 tokens normalised separately",
    replaces="normalized",
    operations=(OutputDistribution, DecoderStep, DecoderOnly),
    breaks=("sizes.model-sizes",),
    source="a softmax over as many numbers as fit into shared memory",
)
def whole_tiles(correct: Formulas, scores: Numbers) -> Numbers:
    """Tokens after the last whole tile of 4,096 are normalised separately."""
    count = scores.shape[-1]
    if count <= 4096:
        return Formulas.normalized(correct, scores)
    first = Formulas.normalized(correct, scores[..., : count // 4096 * 4096])
    last = Formulas.normalized(correct, scores[..., count // 4096 * 4096 :])
    return np.concatenate([first, last], axis=-1)


@mutant(
    "best of the first 256 tokens",
    replaces="best_token",
    operations=(GreedyDecode,),
    breaks=("sizes.model-sizes",),
    source="an argmax in one block of threads",
)
def best_of_256(correct: Formulas, logarithms: Numbers) -> Numbers:
    """Only the first 256 tokens of the vocabulary can be chosen."""
    return Formulas.best_token(correct, logarithms[..., :256])


# Elements of a batch --------------------------------------------------------------------------------------------------


@mutant(
    "causal flag forgotten beyond 600 batch elements",
    replaces="prepare",
    operations=(GroupedQueryAttention,),
    breaks=("sizes.large-sizes",),
    profile="full",
    source="another kernel for large batches, written for decoding one query at a time",
)
def causal_of_few(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The causal flag is ignored for batches of more than 600 elements."""
    many = np.prod(bind(operation, arguments).batch) > 600
    changed_arguments = changed(arguments, {operation.flag: False}) if many and operation.flag else arguments
    return Library.prepare(correct, operation, changed_arguments)
