"""Wrong backends that once conformed because nothing tried what is wrong with them, by class: each is convicted.

``nox -s mutants`` and ``test_rediscovery`` convict each of them in its first operation; here those that have it wrong
in others too are convicted in these, at one seed. With ``ATTNSPEC_WHOLE=1`` in the environment all are judged, at three
seeds of ``full``, and of ``quick`` what that convicts; and honest kernels that were once accused as well.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.judging import engine
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.mutants import MUTANTS, Mutant, ignored, mutant
from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.conformance.running.trials import Task, perform
from attnspec.conformance.variants import VARIANTS
from attnspec.spec import OPERATIONS
from attnspec.spec.attention import ScaledDotProductAttention

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("ATTNSPEC_WHOLE") == "1"
SEEDS = range(3) if WHOLE else range(1)


class Flaw(NamedTuple):
    """A class of wrong backends: what is wrong with them, those that have it, by name, and what convicts all of them.

    ``everywhere`` asks for a conviction in every operation, and not only in the first one that the backend has wrong.
    """

    what: str
    subjects: tuple[str, ...]
    quick: bool = True
    everywhere: bool = False


SIZES = (
    Flaw(
        "positions beyond a tile, up to 300",
        ("wrong beyond 128 keys", "queries beyond 64 repeat", "causal triangle of 64 positions"),
    ),
    Flaw(
        "rows beyond the 512th are stale, or missing",
        (
            "rows beyond the 512th of the call before",
            "keys beyond the 512th of the call before",
            "rows of a buffer for 512 keys",
            "queries beyond the 512th not computed",
            "the mask of the first 512 keys",
            "gradient of the first 512 keys",
            "pytorch/pytorch#127055",
        ),
        quick=False,
    ),
    Flaw("queries and keys that are both more than 1,024", ("late keys lost for late queries",), quick=False),
    Flaw("masks of more than 256 keys for many queries", ("columns of a mask counted in eight bits",)),
    Flaw("more than eight heads", ("weights of eight heads",)),
    Flaw("keys of one element for all", ("heads in reverse beside keys of one element",)),
    Flaw("keys without the first dimension of the batch", ("keys of a head taken for those of an element",)),
    Flaw("masks without the first dimension of the batch", ("mask of the heads taken for that of the batch",)),
    Flaw("more positions than 15 bits count", ("ml-explore/mlx#3360",), quick=False),
    Flaw("more than 128 features", ("queries of 128 features", "hidden layers of 128 units")),
    Flaw("192 features", ("192 features rounded down",)),
    Flaw("256 features", ("values of 256 features in halves",)),
    Flaw("96 features", ("96 features in tiles of 64",)),
    Flaw("160 features", ("160 columns of values in tiles of 64",)),
    Flaw(
        "heads of 72 features, and of others that are no multiple of 16",
        ("the last eight of 72 features", "the last eight of 72 columns of values"),
    ),
    Flaw("512 features", ("512 features overflow a buffer",), quick=False),
    Flaw("gradients of more than 128 features", ("gradient of the keys in 128 features",), quick=False),
    Flaw(
        "keys of batch element 0 from the fifth on",
        ("keys of the first element from the fifth on", "keys of the first head from the fifth on"),
    ),
    Flaw("65,535 elements of a batch", ("elements of a batch counted modulo 65,535",), quick=False),
    Flaw(
        "65,536 elements of a batch",
        (
            "elements of a batch counted in 16 bits",
            "at most 65,535 elements of a batch",
            "elements beyond the 65,535th not computed",
            "flashinfer-ai/flashinfer#3125",
            "pytorch/pytorch#177985",
        ),
        quick=False,
    ),
    Flaw("values narrower than keys", ("values of 32 columns beside 64 features",)),
    Flaw("100 features, and an odd number of them", ("the last four of 100 features", "the last of 101 features")),
    Flaw("576 features beside values of 512", ("576 features beside values of 512",), quick=False),
    Flaw("more keys than 16 bits count", ("keys counted in 16 bits",), quick=False),
    Flaw("rows of more than 1,024 features", ("mean and variance of the first 1,024 features",)),
    Flaw("gradients of weights over more than 256 rows", ("weights learn from the first 256 rows",), quick=False),
    Flaw("offsets of more than 31 bits", ("offsets in 32 bits",), quick=False),
)

LAYOUTS = (
    Flaw("contiguous() only where the last stride is not 1", ("dense rows taken for contiguous arrays",)),
    Flaw("rows of packed projections", ("packed projections read one after another",)),
    Flaw("(b, n, h, d) seen as (b, h, n, d)", ("heads behind positions read as before them",)),
    Flaw("padded rows", ("rows padded to a multiple read without padding", "batch stride from the length")),
    Flaw("strides of another array", ("values by the strides of the keys",)),
    Flaw("an offset into storage", ("offset into storage forgotten", "pytorch/pytorch#131750")),
    Flaw("queries with stride 0", ("expanded queries read once",)),
    Flaw("keys with stride 0", ("expanded keys read once",)),
    Flaw("values with stride 0", ("expanded values read once",)),
    Flaw("masks with stride 0", ("expanded masks read once", "repeated rows taken for dense ones")),
    Flaw("wide rows of packed projections", ("packed rows of 16 features read one after another",)),
    Flaw("padded rows of whole vectors", ("padded rows of whole vectors read without padding",)),
    Flaw("wide keys whose last stride is not 1", ("strided keys of 16 features read one after another",)),
    Flaw("wide keys with stride 0", ("expanded keys of 16 features read for the first head alone",)),
    Flaw("masks that heads share, with stride 0", ("the mask of the first element where heads share masks",)),
    Flaw("negative strides", ("backward runs read forwards",)),
    Flaw("read-only arrays", ("queries scaled in place and back",)),
    Flaw("the same shape with other strides", ("strides of the first call", "flashinfer-ai/flashinfer#4270")),
    Flaw(
        "the same shape in another dtype",
        ("buffer in the dtype of the first call", "keys rounded to the dtype of the first call"),
    ),
    Flaw(
        "what is kept from one call to the next",
        (
            "keys kept by their shape",
            "keys kept by their address",
            "keys kept by the identity of their array",
            "keys projected once for their numbers",
        ),
    ),
)

TRAINING = (
    Flaw(
        "values while gradients are recorded",
        ("dropout while gradients are recorded", "recorded for the query alone without scale"),
    ),
    Flaw("inference mode", ("inference 1 % off",)),
    Flaw("no gradients", ("another kernel where no gradients are recorded",)),
    Flaw(
        "what is written between a recorded call and its backward pass",
        (
            "arguments kept by reference for the backward pass",
            "mask kept by reference for the backward pass",
            "result kept by reference for the backward pass",
        ),
    ),
    Flaw(
        "what is written after a recorded call of one kind alone",
        ("arguments of causal calls kept by reference for the backward pass",),
        quick=False,
    ),
    Flaw(
        "several records of the same shapes, and a call between",
        (
            "keys of the last record of these shapes",
            "keys of the last record but one of these shapes",
            "keys of the last call of these shapes",
        ),
    ),
    Flaw(
        "long calls without gradients, and recorded",
        (
            "causal prompts of more than 64 tokens without gradients",
            "rows of a mask repeat beyond 64 without gradients",
            "length of the first sequence for all without gradients",
            "recorded without the causal flag behind the first tile",
        ),
    ),
    Flaw(
        "one array as queries, keys and values in a mode, and for gradients",
        ("mask forgotten for one array in inference", "gradient of keys that are the queries"),
    ),
    Flaw("autocast", ("another kernel under autocast",)),
    Flaw(
        "masks and the causal flag where no gradients are recorded",
        ("mask forgotten in inference", "causal flag forgotten without gradients", "mask forgotten under autocast"),
    ),
    Flaw(
        "one query of many keys where no gradients are recorded",
        ("last of many keys lost in decoding without gradients",),
    ),
    Flaw(
        "other numbers in the same memory where no gradients are recorded",
        ("keys kept by their address without gradients",),
    ),
    Flaw(
        "masks and the causal flag while gradients are recorded",
        (
            "recorded without its mask",
            "recorded without its causal flag",
            "gradient of the keys alone without the mask",
            "second backward pass without the causal flag",
        ),
    ),
    Flaw("more keys than a tile while gradients are recorded", ("recorded without the last of many keys",)),
    Flaw(
        "wide expanded cotangents",
        ("wide rows of an expanded cotangent read once", "expanded sums of 64 columns read once"),
    ),
    Flaw("strided arguments of a backward pass", ("gradients of strided keys by the strides of dense ones",)),
    Flaw("gradients that differ from pass to pass", ("gradients added up in another order in every pass",)),
    Flaw("gradients of uniform rows", ("uniform rows are 0 while gradients are recorded",)),
    Flaw("expanded cotangents", ("expanded cotangent read at its first number",)),
    Flaw(
        "strided cotangents",
        (
            "cotangent read as if contiguous",
            "rows of the cotangent by its last stride alone",
            "pytorch/pytorch#138354",
        ),
    ),
    Flaw("strided cotangents of a tile of rows", ("long cotangents of heads behind positions read densely",)),
    Flaw("a cotangent of 0", ("gradients divided by the length of the cotangent",)),
    Flaw("tiny cotangents", ("tiny cotangents lost",)),
    Flaw("cotangents of 10³ and more", ("cotangents clipped at a thousand", "large cotangents clipped")),
    Flaw(
        "some arguments alone that need gradients",
        ("gradients only where the query has one", "gradients by place, not by name", "no gradient for w_k"),
    ),
    Flaw("a second backward pass", ("only one backward pass", "second backward pass adds up")),
    Flaw(
        "results in a buffer that is used again", ("results in one buffer", "result overwritten by the backward pass")
    ),
    Flaw(
        "gradients in a buffer that is used again",
        ("gradients in one buffer", "gradients added up over calls", "backward pass into the last result"),
    ),
    Flaw("writes into the cotangent", ("cotangent scaled in place",)),
    Flaw("writes into saved inputs", ("keys overwritten by the backward pass",)),
    Flaw("writes into arguments", ("queries scaled in place", "scores masked in place")),
    Flaw(
        "a query of fewer dimensions than the result",
        ("gradient of a query without batch not summed", "gradient of keys without batch is their mean"),
    ),
)

VALUES = (
    Flaw("values above 10¹⁰", ("values above 10¹⁰ taken for masked ones", "values clamped to the range of float16")),
    Flaw("subnormal values", ("values divided by the largest one of them",)),
    Flaw("a log-sum-exp below −88.7", ("maximum of the scores not below 0",)),
    Flaw(
        "gradients at a log-sum-exp below −88.7", ("NVIDIA/cudnn-frontend#1072", "pytorch/pytorch#196678"), quick=False
    ),
    Flaw("scores beyond 10⁴", ("scores clamped to ±10⁴",)),
    Flaw("a feature that stands out", ("features clipped at ±30",)),
    Flaw("a key that dominates", ("a key of almost all the weight has all of it",), quick=False),
    Flaw("a key that no query likes", ("scores relative to that of the second key",)),
    Flaw("gradients of what looks trained", ("NVIDIA/TransformerEngine#3216",), quick=False),
)

INTEGERS = (
    Flaw("rotary positions beyond 2,048", ("rotary positions in float16", "NVIDIA/Megatron-LM#535")),
    Flaw(
        "late rotary positions",
        ("rotary positions in 15 bits", "rotary table of 4,096 positions", "huggingface/candle#3520"),
    ),
    Flaw("rotary angles in fewer bits than the dtype has", ("rotary angles of doubles in single precision",)),
    Flaw(
        "windows of 256 keys and more",
        ("ends of a window in eight bits", "ends of a window in seven bits and a sign", "ends of a window in 16 bits"),
    ),
    Flaw("a window of 300 keys among 1,100", ("window of at most 255 keys",), quick=False),
    Flaw("numbers of documents that are large", ("documents in 16 bits", "documents in single precision")),
    Flaw(
        "entries of a table that are large",
        ("block table in bytes", "block table in signed bytes", "block table in 15 bits"),
    ),
    Flaw(
        "pages of 64 to 256 rows",
        ("rows of a page beyond the 64th are the first ones", "rows of a page in seven bits"),
    ),
    Flaw("tokens that are large", ("tokens in bytes", "tokens in 15 bits", "tokens in float16"), everywhere=True),
    Flaw(
        "vocabularies of more than 4,096 tokens",
        ("vocabulary in tiles of 4,096 without the last one", "best of the first 256 tokens"),
        everywhere=True,
    ),
    Flaw(
        "causal calls of many elements of a batch",
        ("causal flag forgotten beyond 600 elements of a batch",),
        quick=False,
    ),
)

STATES = (
    Flaw("an initial state of 0", ("state of zeros taken for none",), everywhere=True),
    Flaw("a final state of another dtype", ("final state in single precision", "final state of a sequence in float16")),
    Flaw("means of 10² to 10³ spreads", ("variance as the mean of squares less the squared mean",)),
    Flaw("squares beyond 65,504", ("one-pass variance of rows in float16",)),
    Flaw("variances beyond 65,504", ("centred squares in float16",), quick=False),
    Flaw("subnormal queries", ("queries divided by the largest one of them",)),
    Flaw("a mask alone with a batch", ("mask of the first element where arrays have no batch",)),
    Flaw(
        "a recorded call after one without gradients",
        ("graph without gradients used for recorded calls of its shapes", "pytorch/pytorch#100977"),
    ),
    Flaw(
        "autocast of inputs in float32",
        ("mask forgotten under autocast of float32",),
    ),
)

FILLS = (
    Flaw(
        "finite fills",
        (
            "−10⁴ added to masked scores in float16",
            "−10⁶ added to masked scores",
            "−10⁹ added to masked scores in double precision",
            "masked scores filled with −10⁴ in bfloat16",
            "masked scores filled with −10⁹",
        ),
    ),
)

SCALES = (
    Flaw(
        "a scale of few digits",
        (
            "1/√d of two digits in bfloat16",
            "1/√d of three digits in float16",
            "1/√d of six digits",
            "1/√d in single precision",
        ),
        quick=False,
        everywhere=True,
    ),
    Flaw(
        "a gain in operations with weights",
        (
            "sum of exponentials cut off to bfloat16",
            "sum of exponentials cut off to 11 bits",
            "guard of 10⁻⁵ in the sum of exponentials",
            "sum of exponentials in single precision",
        ),
        quick=False,
        everywhere=True,
    ),
    Flaw(
        "a scale that is wrong beyond key 128",
        ("scores 1 % too large from the 129th key on in bfloat16",),
        quick=False,
        everywhere=True,
    ),
    Flaw("a scale that is wrong under a mask", ("scores 1 % too large under a mask in bfloat16",), quick=False),
    Flaw("a scale that is wrong where causal", ("scores 1 % too large where causal in bfloat16",), quick=False),
    Flaw(
        "a scale that is wrong for wide heads",
        ("scores 1 % too large for 129 features and more in bfloat16",),
        quick=False,
    ),
)

GRADIENTS = (
    Flaw(
        "gradients that are a little too large or too small",
        (
            "gradient of the queries 1 % off in bfloat16",
            "gradient of the weights of the queries 2 % off in bfloat16",
            "gradient of the keys 0.1 % off in float16",
            "gradient of the values 10⁻⁵ off",
            "gradient of the values in bfloat16 by weights that do not sum to 1",
            "gradient of the queries with a scale in single precision",
            "Σ α dα of the backward pass 3 % off in bfloat16",
        ),
        quick=False,
    ),
    Flaw(
        "sums and logarithms of a backward pass in 16 bits",
        (
            "log-sum-exp saved in bfloat16",
            "log-sum-exp saved in float16",
            "gradients of keys and values added up in bfloat16",
        ),
        quick=False,
    ),
)

NOT_FINITE = (
    Flaw("nan_to_num over the result", ("NaN turned into numbers", "weights that are not finite are 0")),
    Flaw(
        "an attendable NaN in other rows than its own, or not in all of them",
        ("a NaN makes its element of the batch NaN", "NaN turned into numbers in every second row"),
    ),
    Flaw(
        "NaN in queries",
        (
            "rows of queries that are NaN are 0",
            "rows of masked queries that are NaN are 0",
            "a query that is NaN spoils the others",
        ),
    ),
    Flaw("attendable scores of −∞", ("rows of −∞ are 0", "short rows of −∞ are 0")),
    Flaw(
        "infinite values",
        ("infinite results clamped", "an infinity makes its row NaN", "infinities without their signs"),
    ),
    Flaw("results in the memory of arguments", ("views of the argument", "attention over one key is its value")),
    Flaw("counts that float16 does not hold", ("attendable keys counted in half precision",)),
)

CHOICES = (
    Flaw(
        "declared NaN, and otherwise for some masks or rows",
        (
            "NaN by mask of queries, unmasked by mask of keys, declared NaN",
            "fully masked rows are 0, declared NaN",
            "NaN in short rows, 0 in long ones, declared NaN",
            "NaN of a row without keys in the whole element of the batch, declared NaN",
            "NaN of a row without keys in every gradient, declared NaN",
        ),
    ),
    Flaw(
        "declared uniform, and otherwise for some masks or rows",
        (
            "NaN by mask of queries, uniform by mask of keys, declared uniform",
            "uniform over what is attendable elsewhere, declared uniform",
        ),
    ),
    Flaw("undeclared", ("fully masked rows are uniform", "fully masked rows are NaN")),
)

OPTIONS = (
    Flaw(
        "options and optional arrays that are accepted and dropped",
        tuple(f"{name} accepted and dropped" for name in ignored.NAMES),
        everywhere=True,
    ),
    Flaw(
        "gradients of what heads, queries, keys or a part of the batch share",
        (
            "bias of all rows learns from the last row",
            "bias of all heads learns from the last head",
            "bias of all keys learns from the last key",
            "bias of all elements learns from the last element",
            "queries of the first dimension of the batch learn from its last element",
            "keys shared by heads learn from the last head",
            "sinks learn from the last row",
        ),
    ),
    Flaw(
        "gradients of groups that are not as many as heads of the keys",
        ("gradient of keys by heads of the queries in turn", "XunhaoLai/native-sparse-attention-triton#27"),
    ),
    Flaw(
        "two options at once",
        (
            "sinks forgotten in a window",
            "cap forgotten beside slopes",
            "lengths forgotten beside a bias",
            "scale forgotten beside a cap",
            "goombalab/hnet#20",
        ),
    ),
    Flaw(
        "two options at once in the backward pass",
        (
            "window forgotten beside sinks in the backward pass",
            "cap forgotten beside a bias in the backward pass",
            "slopes forgotten beside lengths in the backward pass",
        ),
    ),
    Flaw("gradients of sinks", ("pytorch/torchtitan#4796", "Dao-AILab/flash-attention#1973")),
    Flaw(
        "options of one query",
        (
            "slopes forgotten for one query",
            "sinks forgotten for one query",
            "karpathy/nanochat#456",
            "tenstorrent/tt-metal#55337",
        ),
    ),
    Flaw("a length of 0 with sinks", ("sink left out of rows without keys",)),
    Flaw("a window shorter than a tile, with sinks", ("ROCm/rocm-libraries#12227",)),
    Flaw("a tile of the least bias", ("pytorch/pytorch#109517",)),
    Flaw("a finite fill beside a scale", ("flashinfer-ai/flashinfer#4401",)),
    Flaw(
        "parts that are all empty, or far apart",
        (
            "flashinfer-ai/flashinfer#4051",
            "parts that are clamped",
            "parts weighed without their maximum",
            "gradients of parts that are empty",
        ),
    ),
    Flaw("a gain beyond 256 queries", ("a percent more beyond 256 queries",)),
)

FLAWS = (
    *(SIZES + LAYOUTS + TRAINING + VALUES + INTEGERS + STATES + FILLS),
    *(SCALES + GRADIENTS + NOT_FINITE + CHOICES + OPTIONS),
)

KNOWN = {**MUTANTS, **REDISCOVERED}

HONEST = (
    "compiled from C with fused multiply-adds",
    "log₂e and the maximum fused with the exponent",
    "TensorFloat-32 in three products",
    "queries scaled in float16, declared",
    "keys scaled in float16, declared",
)
"""Kernels that were accused once, for the weight of a single key, and for q/√d below the normal numbers of float16."""


def cases() -> Iterator[tuple[Flaw, Mutant, str]]:
    """Backends, each with an operation that it has wrong; of those that need ``full``, one of a class by default."""
    for flaw in FLAWS:
        for name in flaw.subjects if WHOLE or flaw.quick else flaw.subjects[:1]:
            subject = KNOWN[name]
            operations = subject.operations if flaw.everywhere else subject.operations[:1]
            for operation in operations if WHOLE else operations[1:]:
                yield flaw, subject, operation


def named(case: tuple[Flaw, Mutant, str]) -> str:
    flaw, subject, operation = case
    return f"{flaw.what}: {subject.name}: {operation}"


def convicted(subject: Mutant, profile: str, operation: str) -> None:
    """Demand a violation at every seed."""
    survived = [s for s in SEEDS if not perform(Task(subject, profile, s, operation=operation)).failures]
    if survived:
        pytest.fail(f"{subject.name!r} conforms in {profile}, in {operation}, at seeds {survived}", pytrace=False)


@pytest.mark.parametrize("case", list(cases()), ids=named)
def test_backend_is_convicted(case: tuple[Flaw, Mutant, str]) -> None:
    flaw, subject, operation = case
    if WHOLE or not flaw.quick:
        convicted(subject, "full" if WHOLE else subject.profile, operation)
    if flaw.quick:
        convicted(subject, "quick", operation)


def test_what_quick_convicts_is_judged_by_quick() -> None:
    judged_in_full = [name for flaw in FLAWS if flaw.quick for name in flaw.subjects if KNOWN[name].profile != "quick"]
    assert judged_in_full == []


def fills() -> Iterator[tuple[float, str, bool]]:
    """Every fill that a dtype holds, added to masked scores or in their place."""
    for fill, dtype, added in product((-1e4, -1e6, -1e9), ("float64", "float32", "bfloat16", "float16"), (True, False)):
        if dtype != "float16" or -fill <= float(np.finfo(np.float16).max):
            yield fill, dtype, added


@pytest.mark.parametrize(("fill", "dtype", "added"), list(fills()))
def test_finite_fill_is_convicted_in_every_dtype_that_holds_it(fill: float, dtype: str, added: bool) -> None:
    def filled(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
        """A finite number for −∞."""
        if mask is None:
            return scores
        rest = scores if added else scores.dtype.type(0)
        return np.where(mask, scores, rest + scores.dtype.type(fill))

    subject = mutant(
        "filled", replaces="excluded", operations=(ScaledDotProductAttention,), dtype=dtype,
        breaks=("masking.finite-fill",), source="none", register=False,
    )(filled)  # fmt: skip
    for profile in ("full", "quick") if WHOLE else ("quick",):
        convicted(subject, profile, "scaled_dot_product_attention")


Condition = Callable[[Numbers, Numbers, Mapping[str, Any]], bool]

TINY = np.finfo(np.float64).tiny

CONDITIONS: Mapping[str, tuple[str, Condition]] = {
    "a mask has a batch of its own": (
        "operation.broadcasting",
        lambda query, key, given: given["mask"] is not None and given["mask"].ndim > max(query.ndim, key.ndim),
    ),
    "queries are subnormal": (
        "attention.magnitudes",
        lambda query, key, given: bool(((query != 0) & (np.abs(query) < TINY)).any()),
    ),
    "a length of 1 beside more than 8 keys": (
        "operation.option-effect",
        lambda query, key, given: (
            given["key_lengths"] is not None and bool((given["key_lengths"] == 1).any()) and key.shape[-2] > 8
        ),
    ),
    "a sink above 20": (
        "operation.option-effect",
        lambda query, key, given: given["sinks"] is not None and bool((given["sinks"] > 20).any()),
    ),
    "a bias of one query and more than 64 keys": (
        "operation.option-effect",
        lambda query, key, given: given["bias"] is not None and query.shape[-2] == 1 and key.shape[-2] > 64,
    ),
    "a scale and more than 64 keys": (
        "operation.option-effect",
        lambda query, key, given: given["scale"] is not None and key.shape[-2] > 64,
    ),
    "causal with more than 64 features": (
        "operation.option-effect",
        lambda query, key, given: given["causal"] and query.shape[-1] > 64,
    ),
}
"""Of a call of attention in groups, under which it is 2 % too large; and the law that tries it in `quick`."""


@pytest.mark.parametrize("words", CONDITIONS)
def test_error_under_a_condition_is_convicted(words: str) -> None:
    law, condition = CONDITIONS[words]

    def grouped_query_attention(query: Numbers, key: Numbers, value: Numbers, **given: Any) -> Any:
        output, logarithms = reference.grouped_query_attention(query, key, value, **given)
        wrong = condition(query, key, {**OPERATIONS["grouped_query_attention"].defaults, **given})
        return output * 1.02 if wrong else output, logarithms

    backend = SimpleNamespace(name="wrong", grouped_query_attention=grouped_query_attention)
    contract = Contract.of(backend)
    (case,) = engine.cases(contract, laws=(law,), dtypes=("float64",))
    (result,) = engine.judge(backend, contract, case, PROFILES["quick"], stop_at_first=True)
    assert result.status is Status.FAILED


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernel_is_acquitted_in_full(name: str) -> None:
    if reason := VARIANTS[name].lacking():
        pytest.skip(reason)
    if not WHOLE:
        pytest.skip("ATTNSPEC_WHOLE=1 is not in the environment")
    for seed in SEEDS:
        assert perform(Task(VARIANTS[name], "full", seed)).failures == ()


def test_what_has_no_class_is_documented() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "precision.md").read_text(encoding="utf-8").split())
    assert "Gaussian scores as −½(‖q‖² − 2q·k + ‖k‖²)" in page
    assert "products of three bfloat16 parts for one of float32" in page
