"""Laws of masks, and of attention under them."""

from attnspec.spec.contract.axes import Axis, Part
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import S2, S3
from attnspec.spec.laws.pooling import weighs_once
from attnspec.spec.laws.scoring import gives_keys
from attnspec.spec.masking import CausalMask, PaddingMask


def _causal(operation: Operation) -> bool:
    """Whether results depend on earlier positions only, always or under a flag."""
    return bool(operation.causal)


def _masked(operation: Operation) -> bool:
    return bool(operation.masks)


def _weighs_by_scores(operation: Operation) -> bool:
    """Whether a scale of the scores is among the arguments, and the result is weights or what they weigh."""
    weights = gives_keys(operation) or bool(operation.pooled or operation.linear)
    scaled = bool(operation.sharpened) or Part.SCALE in operation.parts.values()
    return scaled and operation.mask is not None and weights and weighs_once(operation)


def _separate_keys(operation: Operation) -> bool:
    return bool(operation.separate_keys)


FUTURE_INVARIANCE = law(
    "masking.future-invariance",
    "Under a causal mask, changing anything after position i changes nothing at or before i.",
    formula=r"x_j = x'_j\ \forall j \le i \Rightarrow f(x)_i = f(x')_i",
    governs=_causal,
    sources=[S2.passage("Masked Decoder Self-Attention"), S3.passage("Attention Mapping in the decoder")],
)
PREFIX = law(
    "masking.prefix",
    "Causal attention of a prefix is the prefix of causal attention.",
    formula=r"f(x_{<t}) = f(x)_{<t}",
    governs=_causal,
    sources=[S2.passage("Masked Decoder Self-Attention")],
)
FUTURE_GRADIENT = law(
    "masking.future-gradient",
    "Under a causal mask, the gradient of the first results with respect to later keys and values is exactly 0.",
    formula=r"\partial f(x)_{\le i} / \partial x_j = 0,\ j > i",
    governs=_causal,
    sources=[S2.passage("Masked Decoder Self-Attention")],
    gradients=True,
)
CAUSAL_IS_A_MASK = law(
    "masking.causal-is-a-mask",
    "`causal` is the same as passing the causal mask, and joins a mask that is given by AND.",
    formula=r"f(x; M, \text{causal}) = f(x; M \wedge [j \le i])",
    governs=lambda operation: operation.flag is not None and operation.mask is not None,
    sources=[S2.passage("Masked Decoder Self-Attention")],
)
GARBAGE = law(
    "masking.garbage",
    "Finite numbers stored at masked keys and values never reach the result.",
    formula=r"j \notin A_i\ \forall i \Rightarrow f \text{ does not depend on } (k_j, v_j)",
    governs=lambda operation: any(map(operation.weighed, operation.masks)),
)
FINITE_FILL = law(
    "masking.finite-fill",
    "Masked keys have no weight, however large scores are: no finite number in place of −∞ is enough.",
    formula=r"A_i = \{j\} \Rightarrow \alpha_{ij} = 1,\ |e_{ik}| \gg 10^4, 10^6, 10^9",
    governs=_weighs_by_scores,
)
NONFINITE_GRADIENT = law(
    "masking.nonfinite-gradient",
    "Where NaN and infinities at masked keys and values do not reach the result, they reach no gradient of queries, "
    "keys and values either; nor do those in a query for which no key counts, where it is "
    "only a query.",
    formula=r"j \notin A_i\ \forall i \Rightarrow \nabla f \text{ does not depend on } (k_j, v_j);\quad "
    r"A_i = \emptyset \Rightarrow \text{nor on } q_i",
    governs=_separate_keys,
    gradients=True,
)
TRUNCATION = law(
    "masking.truncation",
    "Masking the keys beyond a length is the same as cutting them off.",
    formula=r"f(x; [j < \ell]) = f(x_{<\ell})",
    governs=lambda operation: any(
        operation.hides(size) for kind in (Axis.KEY, Axis.TIME) for size in operation.sizes_of(kind)
    ),
    sources=[S2.passage("Encoder Attention: padding")],
)
MASK_BROADCASTING = law(
    "masking.mask-broadcasting",
    "A mask of size 1 along queries, keys or batch counts as repeated.",
    formula=r"f(x; M) = f(x; \operatorname{repeat} M)",
    governs=_masked,
)
MASK_OF_ITS_OWN = law(
    "masking.mask-of-its-own",
    "Every element of a batch follows its own mask, in every head.",
    formula=r"f(x; M)_b = f(x_b; M_b)",
    governs=_masked,
)
ALL_TRUE = law(
    "masking.all-true",
    "A mask that allows everything is no mask.",
    formula=r"f(x; \mathrm{True}) = f(x)",
    governs=_masked,
)
ROWS_AS_DECLARED = law(
    "masking.rows-as-declared",
    "Rows without attendable keys are NaN, or the average of all values, in every call of a backend that declares so, "
    "and no other row is.",
    formula=r"A_i = \emptyset \Leftrightarrow f(x)_i = \mathrm{NaN},\ \text{or}\ A_i = \emptyset \Rightarrow "
    r"f(x)_i = \tfrac{1}{m} \sum_j v_j",
    governs=lambda operation: operation.only_weighs_keys or (operation.mask is not None and operation.pooled == ""),
)
MASK_PREFIX = law(
    "masking.mask-prefix",
    "The mask of fewer positions is a corner of the mask of more.",
    formula=r"M(n', m') = M(n, m)_{<n', <m'}",
    governs=of(CausalMask),
    sources=[S2.passage("Masked Decoder Self-Attention")],
)
STRICT_MASK = law(
    "masking.strict-mask",
    "With and without the position itself, causal masks differ exactly on the diagonal.",
    formula=r"[j \le i] \setminus [j < i] = [j = i]",
    governs=of(CausalMask),
    sources=[S2.passage("Attention in RNNs"), S2.passage("Masked Decoder Self-Attention")],
)
LENGTH_COUNT = law(
    "masking.length-count",
    "A padding mask allows as many keys as the length says, from the first on.",
    formula=r"\sum_j M_{bj} = \ell_b,\quad M_{bj} \ge M_{b,j+1}",
    governs=of(PaddingMask),
    sources=[S2.passage("Encoder Attention: padding")],
)
LENGTH_RANGE = law(
    "masking.length-range",
    "A length below 0 or above the number of positions raises.",
    formula=r"\ell \notin 0..t \Rightarrow \text{raises}",
    governs=lambda operation: bool(operation.lengths),
)
