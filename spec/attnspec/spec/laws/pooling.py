"""Laws of weighted sums of values.

The first functions select the operations that a law governs. They use what a Protocol declares: ``pooled`` is the
argument that is averaged, ``linear`` are arguments in which the result is linear, ``scores_scale_with`` are arguments
whose factors multiply the scores, ``chosen`` are integer results that select the best candidates. ``weighs_keys`` is
derived: all results are sums over the keys of one axis.
"""

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import S0, S1, S2, S4
from attnspec.spec.laws.scoring import has_number_per_key


def _averages_values(operation: Operation) -> bool:
    """True if each result averages values, with weights independent of the values."""
    return operation.pooled in operation.linear


def _is_linear_in_keys(operation: Operation) -> bool:
    """True if the result is linear in an argument with a row per key. It has no number per key itself."""
    return not has_number_per_key(operation) and any(leaf.path in operation.linear for leaf in operation.attended)


def weighs_once(operation: Operation) -> bool:
    """True if keys are weighed once, by scores or by a weights argument: no layers, no time steps."""
    weighed = bool(operation.pooled or operation.scores_scale_with) or _is_linear_in_keys(operation)
    steps = any(operation.axis(size) & (Axis.TIME | Axis.LAYER) for size in operation.sizes)
    # Results without a batch are no ensemble; those of a search for the best candidates jump.
    return weighed and operation.leading.batched and not operation.chosen and not steps


def averages_or_sums_keys(operation: Operation) -> bool:
    """True if the result is a weighted average, or a linear sum over keys."""
    return bool(operation.pooled) or _is_linear_in_keys(operation)


def _sums_keys_weighed_once(operation: Operation) -> bool:
    """True if keys are weighed once and the result is their weighted sum, not weights."""
    return weighs_once(operation) and bool(operation.pooled or operation.linear)


def _averages_masked_keys(operation: Operation) -> bool:
    """True if keys are weighed once and the result averages them under a mask."""
    averaged = operation.weighs_keys and bool(operation.pooled or operation.scores_scale_with)
    return averaged and _sums_keys_weighed_once(operation) and operation.mask is not None


def linear_in_batches(operation: Operation) -> bool:
    """True if the result is linear in an argument with batch dimensions."""
    return weighs_once(operation) and any(leaf.batched for leaf in operation.floats if leaf.path in operation.linear)


CONVEXITY = law(
    "pooling.convexity",
    "Every coordinate of the result lies between the smallest and the largest attendable value. If all values are "
    "equal, the result is that value.",
    formula=r"\min_{j \in A_i} v_j \le o_i \le \max_{j \in A_i} v_j,\quad v_j = c\ \forall j \Rightarrow o_i = c",
    governs=lambda operation: bool(operation.pooled),
    sources=[S0.equation(1), S0.equation(2)],
)
LINEARITY = law(
    "pooling.linearity",
    "The result is linear in every argument that the Protocol declares linear, such as the values: sums give sums, "
    "twice an argument gives twice the result, and 0 gives exactly 0.",
    formula=r"f(v + v') = f(v) + f(v'),\quad f(2v) = 2f(v),\quad f(-v) = -f(v),\quad f(0) = 0",
    governs=lambda operation: bool(operation.linear),
    sources=[
        S0.equation(1),
        S1.passage("Attention: definition"),
        S1.passage("Self-Attention: comparison with convolution and fully-connected layer"),
        S1.passage("Use Attention: dot product + 1/n_k"),
        S2.passage("Luong Attention, footnote 1"),
    ],
)
UNBIASED_GAIN = law(
    "pooling.unbiased-gain",
    "Results have no common factor that is too large or too small. Even an error of the factor far below the rounding "
    "of one element would show over all elements together, or over many batch elements with independent errors.",
    # w is 1/σ², with the standard deviation σ of an element's rounding error.
    formula=r"\hat\varepsilon = \sum w (o - o^*) o^* / \sum w {o^*}^2 \approx 0,"
    r"\quad |\textstyle\sum_b t_b| \le 8 \sqrt{\textstyle\sum_b t_b^2} + \text{errors that all share},"
    r"\quad t_b = \langle o_b - o_b^*, o_b^* \rangle",
    governs=lambda operation: averages_or_sums_keys(operation) or weighs_once(operation),
    sources=[S0.equation(1)],
)
ROUNDING_SPREAD = law(
    "pooling.rounding-spread",
    "Over many batch elements with independent errors, the errors are no larger than the roundings of the precision "
    "class explain. Where the result is an odd function of its inputs, positive and negative errors balance.",
    formula=r"\operatorname{mean}_b t_b \le 1 + 8 \operatorname{sd}(t) / \sqrt B,"
    r"\quad t_b = \operatorname{mean} (o_b - o_b^*)^2 / \sigma_b^2;\quad f(-x) = -f(x):"
    r"\ |\textstyle\sum_b s_b| \le 8 \sqrt{\textstyle\sum_b s_b^2},\quad s_b = (o_b - o_b^*) / \sigma_b",
    governs=_sums_keys_weighed_once,
    sources=[S0.equation(1)],
)
NO_LOST_OR_EXTRA_KEYS = law(
    "pooling.no-lost-or-extra-keys",
    "Every key has its own weight: none is left out, and no masked key or padding of a tile counts. Even a wrong "
    "weight far below the roundings would show over many batch elements with independent errors.",
    formula=r"\hat\varepsilon = \sum_b t_b / \sum_b \|g_b\|^2 \approx 0,"
    r"\quad t_b = \langle o_b - o_b^*, g_b \rangle,\quad g_b = (v_{b,j} - o_b^*) / m",
    governs=_averages_masked_keys,
    sources=[S0.equation(1)],
)
EQUAL_KEYS_GIVE_MEAN = law(
    "pooling.equal-keys-give-mean",
    "Equal keys have equal weights, so the result is the mean of the attendable values.",
    formula=r"k_j = k\ \forall j \Rightarrow o_i = \tfrac{1}{|A_i|} \sum_{j \in A_i} v_j",
    governs=lambda operation: _averages_values(operation) and len(operation.attended) > 1,
    sources=[S4.passage("Attention Prompt"), S1.passage("Attention: definition")],
)
