"""Laws of masks, and of attention under them."""

from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import BELTAGY, S2, S3
from attnspec.spec.laws.pooling import weighs_once
from attnspec.spec.laws.recurrent import over_sequences
from attnspec.spec.laws.scoring import has_number_per_key
from attnspec.spec.masking import CausalMask, PaddingMask


def causal(operation: Operation) -> bool:
    """True if results depend only on earlier positions, always or under a flag."""
    return bool(operation.causal)


def masked(operation: Operation) -> bool:
    """True if there is a mask."""
    return bool(operation.masks)


def _weighs_by_scores(operation: Operation) -> bool:
    """True if scores with a scale and a mask become weights or weighted sums."""
    weights = has_number_per_key(operation) or bool(operation.pooled or operation.linear)
    scaled = bool(operation.scores_scale_with) or ScoreEffect.SCALE in operation.parts.values()
    return scaled and operation.mask is not None and weights and weighs_once(operation)


def separate_keys(operation: Operation) -> bool:
    """True if results sum over keys that are not also queries."""
    return bool(operation.separate_keys)


def averages_values(operation: Operation) -> bool:
    """True if a row without attendable keys may be the average of all values."""
    valued = any(leaf.path in operation.linear for leaf in operation.attended)
    return operation.differentiable and operation.only_weighs_keys and operation.mask is not None and valued


FUTURE_INVARIANCE = law(
    "masking.future-invariance",
    "Under a causal mask, nothing after position i affects a result at or before i, whether it is changed or cut off.",
    formula=r"x_j = x'_j\ \forall j \le i \Rightarrow f(x)_i = f(x')_i,\quad f(x_{<t}) = f(x)_{<t}",
    governs=causal,
    sources=[S2.passage("Masked Decoder Self-Attention"), S3.passage("Attention Mapping in the decoder")],
)
EQUALS_EXPLICIT_MASK = law(
    "masking.equals-explicit-mask",
    "Every way to restrict attention equals an explicit mask. The causal flag is the causal mask, combined with the "
    "mask argument by AND. A window includes both of its ends, and None means no end. No mask allows everything.",
    formula=r"f(x; M, \text{causal}) = f(x; M \wedge [j \le i]),"
    r"\quad f(x; (l, r)) = f(x; [\,i - l \le j \le i + r\,]),\quad f(x) = f(x; \mathrm{True})",
    governs=masked,
    sources=[S2.passage("Masked Decoder Self-Attention"), BELTAGY.passage("3.1 Attention pattern: sliding window")],
)
MASKED_KEYS_IGNORED = law(
    "masking.masked-keys-ignored",
    "Finite numbers stored at masked keys and values never reach the result.",
    formula=r"j \notin A_i\ \forall i \Rightarrow f \text{ does not depend on } (k_j, v_j)",
    governs=lambda operation: any(map(operation.summed_over, operation.masks)),
)
NO_FINITE_FILL = law(
    "masking.no-finite-fill",
    "Masked keys have no weight, however large the scores are: no finite number may stand for −∞ as their score.",
    formula=r"A_i = \{j\} \Rightarrow \alpha_{ij} = 1,\ |e_{ik}| \gg 10^4, 10^6, 10^9",
    governs=_weighs_by_scores,
)
MASKED_GETS_NO_GRADIENT = law(
    "masking.masked-gets-no-gradient",
    "Hidden positions get no gradient. Under a causal mask, later keys and values get exactly 0 from earlier "
    "results; steps beyond the length of a sequence get 0. NaN and infinities in three places reach no gradient of "
    "queries, keys and values: at masked keys and values, if there they do not reach the result; in queries without "
    "attendable keys that are not also keys; at steps beyond a length. Where a row without attendable keys is "
    "declared to be the average of all m values, each value gets 1/m of the row's cotangent.",
    formula=r"\partial f(x)_{\le i} / \partial x_j = 0,\ j > i;"
    r"\quad t > \ell \Rightarrow \partial f / \partial X_t = 0;"
    r"\quad j \notin A_i\ \forall i \Rightarrow \nabla f \text{ does not depend on } (k_j, v_j);\quad "
    r"A_i = \emptyset \Rightarrow \text{nor on } q_i;"
    r"\quad o_i = \tfrac1m \sum_j v_j:\ \nabla_{v_j} \langle c_i, o_i \rangle = \tfrac1m c_i",
    governs=lambda operation: any(
        selects(operation) for selects in (causal, separate_keys, over_sequences, averages_values)
    ),
    sources=[S2.passage("Masked Decoder Self-Attention")],
    gradients=True,
)
MASKING_EQUALS_TRUNCATION = law(
    "masking.masking-equals-truncation",
    "Masking the keys beyond a length gives the same result as cutting them off.",
    formula=r"f(x; [j < \ell]) = f(x_{<\ell})",
    governs=lambda operation: any(
        operation.hiding_argument(size) for kind in (Axis.KEY, Axis.TIME) for size in operation.sizes_of(kind)
    ),
    sources=[S2.passage("Encoder Attention: padding")],
)
ROWS_WITHOUT_KEYS_AS_DECLARED = law(
    "masking.rows-without-keys-as-declared",
    "If a backend declares NaN for rows without attendable keys, these rows are NaN in every call, and no other row "
    "is. If it declares the average of all values, they are that average in every call.",
    formula=r"A_i = \emptyset \Leftrightarrow f(x)_i = \mathrm{NaN},\ \text{or}\ A_i = \emptyset \Rightarrow "
    r"f(x)_i = \tfrac{1}{m} \sum_j v_j",
    governs=lambda operation: operation.only_weighs_keys or (operation.mask is not None and operation.pooled == ""),
)
STRICT_MASK_EXCLUDES_DIAGONAL = law(
    "masking.strict-mask-excludes-diagonal",
    "Causal masks with and without the position itself differ exactly on the diagonal.",
    formula=r"[j \le i] \setminus [j < i] = [j = i]",
    governs=of(CausalMask),
    sources=[S2.passage("Attention in RNNs"), S2.passage("Masked Decoder Self-Attention")],
)
PADDING_KEEPS_FIRST_KEYS = law(
    "masking.padding-keeps-first-keys",
    "The padding mask of a sequence of length ℓ allows its first ℓ keys and no others.",
    formula=r"\sum_j M_{bj} = \ell_b,\quad M_{bj} \ge M_{b,j+1}",
    governs=of(PaddingMask),
    sources=[S2.passage("Encoder Attention: padding")],
)
