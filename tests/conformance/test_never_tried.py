"""Every class of wrong backends that once conformed, since no law tried it, is convicted.

``nox -s mutants`` and ``test_rediscovery`` convict them in their first operation; here they are convicted in their
other operations, at one seed. ``ATTNSPEC_WHOLE=1`` judges all, at three seeds, by ``full`` and where possible by
``quick``, and also honest kernels that were once accused.
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
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.mutants import MUTANTS, Mutant, ignored, mutant
from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.conformance.variants import VARIANTS
from attnspec.spec import OPERATIONS
from attnspec.spec.attention import ScaledDotProductAttention

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("ATTNSPEC_WHOLE") == "1"
SEEDS = range(3) if WHOLE else range(1)


class Flaw(NamedTuple):
    """A class of defects, with the names of its mutants and rediscovered defects.

    ``quick``: that profile convicts all of them. ``everywhere``: in every operation, not only in the first one.
    """

    defect: str
    subjects: tuple[str, ...]
    quick: bool = True
    everywhere: bool = False


SIZES = (
    Flaw(
        "positions beyond a tile, up to 300",
        ("values read modulo 128", "result rows repeat after 64", "causal mask of 64 columns"),
    ),
    Flaw(
        "rows beyond the 512th are stale, or missing",
        (
            "rows beyond the 512th kept from the first call",
            "keys beyond the 512th kept from the first call",
            "keys and values read modulo 512",
            "queries beyond the 512th not computed",
            "columns of a mask read modulo 512",
            "no gradient of keys beyond the 512th",
            "pytorch/pytorch#127055",
        ),
        quick=False,
    ),
    Flaw(
        "queries and keys that are both more than 1,024",
        ("keys beyond the 1,024th lost for queries beyond it",),
        quick=False,
    ),
    Flaw("masks of more than 256 keys for many queries", ("columns of a mask read modulo 256",)),
    Flaw("more than eight heads", ("heads beyond the eighth use its weights",)),
    Flaw("keys of one element for all", ("heads of keys shared by the batch reversed",)),
    Flaw("keys without the first dimension of the batch", ("keys of heads read as keys of batch elements",)),
    Flaw("masks without the first dimension of the batch", ("masks of heads read as masks of batch elements",)),
    Flaw("more positions than 15 bits count", ("ml-explore/mlx#3360",), quick=False),
    Flaw(
        "more than 128 features",
        ("features of queries beyond the 128th ignored", "hidden units beyond the 128th are 0"),
    ),
    Flaw("192 features", ("last 64 of 192 features ignored",)),
    Flaw("256 features", ("second half of 256 value columns repeats the first",)),
    Flaw("96 features", ("last 32 of 96 features ignored",)),
    Flaw("160 features", ("last 32 of 160 value columns are 0",)),
    Flaw(
        "heads of 72 features, and of others that are no multiple of 16",
        ("last 8 features of a half-full tile ignored", "last 8 value columns of a half-full tile are 0"),
    ),
    Flaw("512 features", ("features of queries read modulo 256",), quick=False),
    Flaw("gradients of more than 128 features", ("no gradient of key features beyond the 128th",), quick=False),
    Flaw(
        "keys of batch element 0 from the fifth on",
        ("first element's keys used from the fifth on", "first head's keys used from the fifth on"),
    ),
    Flaw("65,535 elements of a batch", ("batch of exactly 65,535 elements not computed",), quick=False),
    Flaw(
        "65,536 elements of a batch",
        (
            "batch elements counted modulo 65,536",
            "batches of more than 65,535 elements raise",
            "batch elements beyond the 65,535th not computed",
            "flashinfer-ai/flashinfer#3125",
            "pytorch/pytorch#177985",
        ),
        quick=False,
    ),
    Flaw("values narrower than keys", ("last 16 of 32 value columns are 0 beside 64 features",)),
    Flaw(
        "100 features, and an odd number of them",
        ("last 4 features beyond whole vectors of 8 ignored", "last of an odd number of features ignored"),
    ),
    Flaw("576 features beside values of 512", ("last 64 of 576 features ignored",), quick=False),
    Flaw("more keys than 16 bits count", ("keys beyond the 65,536th masked",), quick=False),
    Flaw("rows of more than 1,024 features", ("mean and variance of the first 1,024 features",)),
    Flaw(
        "gradients of weights over more than 256 rows",
        ("gradients of weights from the first 256 rows only",),
        quick=False,
    ),
    Flaw("offsets of more than 31 bits", ("elements from offset 2³¹ on read as 0",), quick=False),
)

LAYOUTS = (
    Flaw("contiguous() only where the last stride is not 1", ("arrays with last stride 1 read as contiguous",)),
    Flaw("rows of packed projections", ("rows of packed projections read as contiguous",)),
    Flaw("(b, n, h, d) seen as (b, h, n, d)", ("heads stored after positions read as before them",)),
    Flaw("padded rows", ("padded rows read as contiguous", "batch elements read as contiguous")),
    Flaw("strides of another array", ("values reversed if their strides are not those of the keys",)),
    Flaw("an offset into storage", ("offset of a view ignored", "pytorch/pytorch#131750")),
    Flaw("queries with stride 0", ("queries repeated by stride 0 read as 0",)),
    Flaw("keys with stride 0", ("keys repeated by stride 0 read as 0",)),
    Flaw("values with stride 0", ("values repeated by stride 0 read as 0",)),
    Flaw("masks with stride 0", ("masks repeated by stride 0 read as False", "repetitions by stride 0 read as 0")),
    Flaw("wide rows of packed projections", ("packed rows of 16 or more features read as contiguous",)),
    Flaw("padded rows of whole vectors", ("padded rows of 16, 24, … elements read as contiguous",)),
    Flaw("wide keys whose last stride is not 1", ("strided keys of 16 or more features read as contiguous",)),
    Flaw("wide keys with stride 0", ("repeated keys of 16 or more features read as 0",)),
    Flaw("masks that heads share, with stride 0", ("first element's mask used where heads share masks",)),
    Flaw("negative strides", ("axes of negative stride read forwards",)),
    Flaw("read-only arrays", ("queries written to in place",)),
    Flaw(
        "the same shape with other strides",
        ("arrays reversed if their strides change", "flashinfer-ai/flashinfer#4270"),
    ),
    Flaw(
        "the same shape in another dtype",
        ("results in the dtype of the first call", "keys rounded to the dtype of the first call"),
    ),
    Flaw(
        "what is kept from one call to the next",
        (
            "keys cached by their shape",
            "keys cached by their address",
            "keys cached by the identity of their array",
            "new projection of the same keys ignored",
        ),
    ),
)

TRAINING = (
    Flaw(
        "values while gradients are recorded",
        (
            "results 10 % too large while gradients are recorded",
            "results × 0.75 if only the first argument has a gradient",
        ),
    ),
    Flaw("inference mode", ("results 1 % too large in inference",)),
    Flaw("no gradients", ("results 10 % too large without gradients",)),
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
            "saved keys overwritten by the next recorded call",
            "saved keys overwritten by the second next recorded call",
            "saved keys overwritten by any later call",
        ),
    ),
    Flaw(
        "long calls without gradients, and recorded",
        (
            "causal flag forgotten beyond 64 queries without gradients",
            "rows of a mask repeat beyond 64 without gradients",
            "length of the first sequence for all without gradients",
            "causal flag forgotten beyond 64 queries while gradients are recorded",
        ),
    ),
    Flaw(
        "one array as queries, keys and values in a mode, and for gradients",
        (
            "mask forgotten in inference if all inputs are one array",
            "keys that are the queries get the gradient of the queries",
        ),
    ),
    Flaw("autocast", ("results 10 % too large under autocast",)),
    Flaw(
        "masks and the causal flag where no gradients are recorded",
        ("mask forgotten in inference", "causal flag forgotten without gradients", "mask forgotten under autocast"),
    ),
    Flaw(
        "one query of many keys where no gradients are recorded",
        ("last of 64 or more keys lost in decoding without gradients",),
    ),
    Flaw(
        "other numbers in the same memory where no gradients are recorded",
        ("keys cached by their address without gradients",),
    ),
    Flaw(
        "masks and the causal flag while gradients are recorded",
        (
            "mask forgotten while gradients are recorded",
            "causal flag forgotten while gradients are recorded",
            "mask forgotten if only the keys have a gradient",
            "second backward pass without the causal flag",
        ),
    ),
    Flaw(
        "more keys than a tile while gradients are recorded",
        ("last of more than 64 keys lost while gradients are recorded",),
    ),
    Flaw(
        "wide expanded cotangents",
        (
            "only the first of expanded rows of 8 or more columns read",
            "only the first of expanded rows of 64 or more columns read",
        ),
    ),
    Flaw("strided arguments of a backward pass", ("strided keys read as contiguous by the backward pass",)),
    Flaw("gradients that differ from pass to pass", ("gradients summed in a new order in every pass",)),
    Flaw("gradients of uniform rows", ("uniform rows are 0 while gradients are recorded",)),
    Flaw("expanded cotangents", ("only the first row of an expanded cotangent read",)),
    Flaw(
        "strided cotangents",
        ("cotangent read as if contiguous", "rows of the cotangent read without their gaps", "pytorch/pytorch#138354"),
    ),
    Flaw("strided cotangents of a tile of rows", ("cotangents of 64 or more rows read without their gaps",)),
    Flaw("a cotangent of 0", ("gradients 0/0 for a cotangent of 0",)),
    Flaw("tiny cotangents", ("cotangents below 2⁻²⁴ count as 0",)),
    Flaw("cotangents of 10³ and more", ("cotangents clipped at ±1,000", "cotangents clipped at ±100")),
    Flaw(
        "some arguments alone that need gradients",
        (
            "gradients 0 unless the first argument has one",
            "gradients returned by position, not by name",
            "no gradient for w_k",
        ),
    ),
    Flaw("a second backward pass", ("only one backward pass", "second backward pass adds the first")),
    Flaw("results in a buffer that is used again", ("results in one buffer", "result halved by the backward pass")),
    Flaw(
        "gradients in a buffer that is used again",
        (
            "gradients in one buffer",
            "gradients of earlier passes added from the third on",
            "last result overwritten with the cotangent",
        ),
    ),
    Flaw("writes into the cotangent", ("cotangent scaled in place",)),
    Flaw("writes into saved inputs", ("keys overwritten by the backward pass",)),
    Flaw("writes into arguments", ("queries scaled in place", "scores overwritten in place")),
    Flaw(
        "a query of fewer dimensions than the result",
        (
            "gradient of unbatched queries from the first element only",
            "gradient of unbatched keys is the mean over the batch",
        ),
    ),
)

VALUES = (
    Flaw("values above 10¹⁰", ("values beyond ±10¹⁰ count as 0", "values clamped to the range of float16")),
    Flaw("subnormal values", ("values multiplied by an overflowing reciprocal",)),
    Flaw("a log-sum-exp below −88.7", ("subtracted maximum at least 0",)),
    Flaw(
        "gradients at a log-sum-exp below −88.7", ("NVIDIA/cudnn-frontend#1072", "pytorch/pytorch#196678"), quick=False
    ),
    Flaw("scores beyond 10⁴", ("scores clamped to ±10⁴",)),
    Flaw("a feature that stands out", ("features clipped at ±30",)),
    Flaw("a key that dominates", ("weights beside one above 0.999 set to 0",), quick=False),
    Flaw("a key that no query likes", ("second key's score subtracted, not the maximum",)),
    Flaw("gradients of what looks trained", ("NVIDIA/TransformerEngine#3216",), quick=False),
)

INTEGERS = (
    Flaw("rotary positions beyond 2,048", ("rotary positions in float16", "NVIDIA/Megatron-LM#535")),
    Flaw(
        "late rotary positions",
        ("rotary positions in int16", "rotary table of 4,096 positions", "huggingface/candle#3520"),
    ),
    Flaw("rotary angles in fewer bits than the dtype has", ("rotary angles of float64 inputs in float32",)),
    Flaw(
        "windows of 256 keys and more",
        ("ends of a window in uint8", "ends of a window in int8", "ends of a window in uint16"),
    ),
    Flaw("a window of 300 keys among 1,100", ("window of at most 255 keys",), quick=False),
    Flaw("numbers of documents that are large", ("documents in int16", "documents in float32")),
    Flaw("entries of a table that are large", ("block table in uint8", "block table in int8", "block table in int16")),
    Flaw("pages of 64 to 256 rows", ("rows of a page read modulo 64", "rows of a page read modulo 128")),
    Flaw("tokens that are large", ("tokens in uint8", "tokens in int16", "tokens in float16"), everywhere=True),
    Flaw(
        "vocabularies of more than 4,096 tokens",
        ("last partial tile of 4,096 tokens normalised separately", "best of the first 256 tokens"),
        everywhere=True,
    ),
    Flaw("causal calls of many elements of a batch", ("causal flag forgotten beyond 600 batch elements",), quick=False),
)

STATES = (
    Flaw("an initial state of 0", ("zero state replaced by the last final state",), everywhere=True),
    Flaw("a final state of another dtype", ("final state in single precision", "final state of a sequence in float16")),
    Flaw("means of 10² to 10³ spreads", ("variance as the mean of squares less the squared mean",)),
    Flaw("squares beyond 65,504", ("one-pass variance of rows in float16",)),
    Flaw("variances beyond 65,504", ("centred squares in float16",), quick=False),
    Flaw("subnormal queries", ("queries multiplied by an overflowing reciprocal",)),
    Flaw("a mask alone with a batch", ("first mask used for all if only masks have a batch",)),
    Flaw(
        "a recorded call after one without gradients",
        ("gradients 0 for shapes first called without gradients", "pytorch/pytorch#100977"),
    ),
    Flaw("autocast of inputs in float32", ("mask forgotten under autocast of float32",)),
)

FILLS = (
    Flaw("finite fills",
        ("−10⁴ added to masked scores in float16", "−10⁶ added to masked scores",
         "−10⁹ added to masked scores in double precision", "masked scores filled with −10⁴ in bfloat16",
         "masked scores filled with −10⁹")),
)  # fmt: skip

SCALES = (
    Flaw("a scale of few digits",
        ("1/√d of two digits in bfloat16", "1/√d of three digits in float16", "1/√d of six digits",
         "1/√d in single precision"), quick=False, everywhere=True),
    Flaw("a gain in operations with weights",
        ("sum of exponentials cut off to bfloat16", "sum of exponentials cut off to 11 bits",
         "guard of 10⁻⁵ in the sum of exponentials", "sum of exponentials in single precision"), quick=False,
        everywhere=True),
    Flaw("a scale that is wrong beyond key 128", ("scores 1 % too large from the 129th key on in bfloat16",),
        quick=False, everywhere=True),
    Flaw("a scale that is wrong under a mask", ("scores 1 % too large under a mask in bfloat16",), quick=False),
    Flaw("a scale that is wrong where causal", ("scores 1 % too large where causal in bfloat16",), quick=False),
    Flaw("a scale that is wrong for wide heads", ("scores 1 % too large for 129 features and more in bfloat16",),
        quick=False),
)  # fmt: skip

GRADIENTS = (
    Flaw("gradients that are a little too large or too small",
        ("gradient of the queries 1 % too small in bfloat16", "gradient of W_q 2 % too small in bfloat16",
         "gradient of the keys 0.1 % too large in float16", "gradient of the values too small by 10⁻⁵",
         "gradient of the values 0.3 % too small in bfloat16",
         "gradient of the queries with a scale in single precision",
         "Σ P∘dP of the backward pass 3 % too large in bfloat16"), quick=False),
    Flaw("sums and logarithms of a backward pass in 16 bits",
        ("log-sum-exp saved in bfloat16", "log-sum-exp saved in float16",
         "gradients of keys and values summed in bfloat16"), quick=False),
)  # fmt: skip

NOT_FINITE = (
    Flaw("nan_to_num over the result", ("NaN in the result turned into 0", "NaN weights are 0")),
    Flaw("an attendable NaN in other rows than its own, or not in all of them",
        ("a NaN makes its batch element NaN", "NaN turned into 0 in odd rows")),
    Flaw("NaN in queries",
        ("rows of NaN queries are 0", "rows of NaN queries are 0 under a mask",
         "a NaN query makes its batch element NaN")),
    Flaw("attendable scores of −∞", ("rows of −∞ are 0", "short rows of −∞ are 0")),
    Flaw("infinite values",
        ("infinite results clamped", "an infinity makes its row NaN", "infinities without their signs")),
    Flaw("results in the memory of arguments",
        ("results returned as views of the argument", "argument returned as the result")),
    Flaw("counts that float16 does not hold", ("attendable keys counted in float16",)),
)  # fmt: skip

CHOICES = (
    Flaw("declared NaN, and otherwise for some masks or rows",
        ("rows without keys NaN under (n, m) masks, unmasked under (1, m) masks, declared NaN",
         "fully masked rows are 0, declared NaN", "rows without keys NaN up to query 16, then 0, declared NaN",
         "a row without keys makes its batch element NaN, declared NaN",
         "a row without keys makes every gradient NaN, declared NaN")),
    Flaw("declared uniform, and otherwise for some masks or rows",
        ("rows without keys NaN under (n, m) masks, uniform under (1, m) masks, declared uniform",
         "rows without keys uniform over every second key, declared uniform")),
    Flaw("undeclared", ("fully masked rows are uniform", "fully masked rows are NaN")),
)  # fmt: skip

OPTIONS = (
    Flaw(
        "options and optional arrays that are accepted and dropped",
        tuple(f"{name} accepted and dropped" for name in ignored.NAMES),
        everywhere=True,
    ),
    Flaw(
        "gradients of what heads, queries, keys or a part of the batch share",
        (
            "gradient of a bias shared by queries from the last query only",
            "gradient of a bias shared by heads from the last head only",
            "gradient of a bias shared by keys from the last key only",
            "gradient of a bias shared by the batch from the last element only",
            "gradient of queries shared by the batch from the last element only",
            "gradient of keys shared by heads from the last head only",
            "gradient of the sinks from the last row only",
        ),
    ),
    Flaw(
        "gradients of groups that are not as many as heads of the keys",
        ("gradients of key heads permuted", "XunhaoLai/native-sparse-attention-triton#27"),
    ),
    Flaw(
        "two options at once",
        (
            "sinks forgotten beside a window",
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
    Flaw("a length of 0 with sinks", ("log-sum-exp of rows without keys lacks the sink",)),
    Flaw("a window shorter than a tile, with sinks", ("ROCm/rocm-libraries#12227",)),
    Flaw("a tile of the least bias", ("pytorch/pytorch#109517",)),
    Flaw("a finite fill beside a scale", ("flashinfer-ai/flashinfer#4401",)),
    Flaw(
        "parts that are all empty, or far apart",
        (
            "flashinfer-ai/flashinfer#4051",
            "merged log-sum-exps clamped at −10³⁰",
            "parts weighted by exponentials that overflow",
            "NaN gradients if all parts are empty",
        ),
    ),
    Flaw("a gain beyond 256 queries", ("rows beyond the 256th 1 % too large",)),
)

FLAWS = (
    *(SIZES + LAYOUTS + TRAINING + VALUES + INTEGERS + STATES + FILLS),
    *(SCALES + GRADIENTS + NOT_FINITE + CHOICES + OPTIONS),
)

DEFECTS = {**MUTANTS, **REDISCOVERED}

HONEST = (
    "compiled from C with fused multiply-adds",
    "log₂e and the maximum fused with the exponent",
    "TensorFloat-32 in three products",
    "queries scaled in float16, declared",
    "keys scaled in float16, declared",
)
"""Honest kernels once accused: for weights of single keys, and for subnormal q/√d in float16."""


def backends_and_operations() -> Iterator[tuple[Flaw, Mutant, str]]:
    """Mutants with one wrong operation each; by default only one per class that needs ``full``."""
    for flaw in FLAWS:
        for name in flaw.subjects if WHOLE or flaw.quick else flaw.subjects[:1]:
            subject = DEFECTS[name]
            operations = subject.operations if flaw.everywhere else subject.operations[:1]
            for operation in operations if WHOLE else operations[1:]:
                yield flaw, subject, operation


def case_name(case: tuple[Flaw, Mutant, str]) -> str:
    flaw, subject, operation = case
    return f"{flaw.defect}: {subject.name}: {operation}"


def assert_convicted(subject: Mutant, profile: str, operation: str) -> None:
    """Demand a violation at every seed."""
    survived = [s for s in SEEDS if not run_trial(Trial(subject, profile, s, operation=operation)).failures]
    if survived:
        pytest.fail(f"{subject.name!r} conforms in {profile}, in {operation}, at seeds {survived}", pytrace=False)


@pytest.mark.parametrize("case", list(backends_and_operations()), ids=case_name)
def test_every_wrong_backend_is_convicted(case: tuple[Flaw, Mutant, str]) -> None:
    flaw, subject, operation = case
    if WHOLE or not flaw.quick:
        assert_convicted(subject, "full" if WHOLE else subject.profile, operation)
    if flaw.quick:
        assert_convicted(subject, "quick", operation)


def test_mutants_that_quick_convicts_have_that_profile() -> None:
    in_full = [name for flaw in FLAWS if flaw.quick for name in flaw.subjects if DEFECTS[name].profile != "quick"]
    assert in_full == []


def finite_fills() -> Iterator[tuple[float, str, bool]]:
    """Every finite fill that a dtype holds, added to masked scores or replacing them."""
    for fill, dtype, added in product((-1e4, -1e6, -1e9), ("float64", "float32", "bfloat16", "float16"), (True, False)):
        if dtype != "float16" or -fill <= float(np.finfo(np.float16).max):
            yield fill, dtype, added


@pytest.mark.parametrize(("fill", "dtype", "added"), list(finite_fills()))
def test_a_finite_fill_is_convicted_in_every_dtype_that_holds_it(fill: float, dtype: str, added: bool) -> None:
    def filled(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
        """A finite number for −∞."""
        if mask is None:
            return scores
        base = scores if added else scores.dtype.type(0)
        return np.where(mask, scores, base + scores.dtype.type(fill))

    subject = mutant(
        "filled", replaces="mask_scores", operations=(ScaledDotProductAttention,), dtype=dtype,
        breaks=("masking.no-finite-fill",), source="none", register=False,
    )(filled)  # fmt: skip
    for profile in ("full", "quick") if WHOLE else ("quick",):
        assert_convicted(subject, profile, "scaled_dot_product_attention")


Condition = Callable[[Numbers, Numbers, Mapping[str, Any]], bool]

TINY = np.finfo(np.float64).tiny

CONDITIONS: Mapping[str, tuple[str, Condition]] = {
    "a mask has a batch of its own": (
        "operation.broadcast-equals-repeat",
        lambda query, key, options: options["mask"] is not None and options["mask"].ndim > max(query.ndim, key.ndim),
    ),
    "queries are subnormal": (
        "attention.extreme-magnitudes",
        lambda query, key, options: bool(((query != 0) & (np.abs(query) < TINY)).any()),
    ),
    "a length of 1 beside more than 8 keys": (
        "operation.options-have-effect",
        lambda query, key, options: (
            options["key_lengths"] is not None and bool((options["key_lengths"] == 1).any()) and key.shape[-2] > 8
        ),
    ),
    "a sink above 20": (
        "operation.options-have-effect",
        lambda query, key, options: options["sinks"] is not None and bool((options["sinks"] > 20).any()),
    ),
    "a bias of one query and more than 64 keys": (
        "operation.options-have-effect",
        lambda query, key, options: options["bias"] is not None and query.shape[-2] == 1 and key.shape[-2] > 64,
    ),
    "a scale and more than 64 keys": (
        "operation.options-have-effect",
        lambda query, key, options: options["scale"] is not None and key.shape[-2] > 64,
    ),
    "causal with more than 64 features": (
        "operation.options-have-effect",
        lambda query, key, options: options["causal"] and query.shape[-1] > 64,
    ),
}
"""Conditions for results that are 2 % too large, with the convicting laws."""


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_error_under_a_condition_is_convicted(name: str) -> None:
    law, condition = CONDITIONS[name]

    def grouped_query_attention(query: Numbers, key: Numbers, value: Numbers, **options: Any) -> Any:
        output, logarithms = reference.grouped_query_attention(query, key, value, **options)
        wrong = condition(query, key, {**OPERATIONS["grouped_query_attention"].defaults, **options})
        return output * 1.02 if wrong else output, logarithms

    backend = SimpleNamespace(name="wrong", grouped_query_attention=grouped_query_attention)
    contract = Contract.of(backend)
    (case,) = cases(contract, laws=(law,), dtypes=("float64",))
    (result,) = engine.judge(backend, contract, case, PROFILES["quick"], stop_at_first=True)
    assert result.status is Status.FAILED


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_acquitted_by_full(name: str) -> None:
    if reason := VARIANTS[name].lacking():
        pytest.skip(reason)
    if not WHOLE:
        pytest.skip("ATTNSPEC_WHOLE=1 is not in the environment")
    for seed in SEEDS:
        assert run_trial(Trial(VARIANTS[name], "full", seed)).failures == ()


def test_computations_without_a_precision_class_are_documented() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "precision.md").read_text(encoding="utf-8").split())
    assert "Gaussian scores as −½(‖q‖² − 2q·k + ‖k‖²)" in page
    assert "products of three bfloat16 parts for one of float32" in page
