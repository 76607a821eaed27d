"""S1: Wang, Attention Mechanism, Part 1. A page that returns with one more line is listed again.

Each page, figure and formula is listed with the owners that specify it, or with the reason why it has none. Owners are
operations such as ``softmax``, laws, which have a dot, and errata or misprints such as ``S2-variance``.
``tests/spec/test_lectures.py`` looks them up, and compares headings, captions, LaTeX and the first words of passages,
their second argument, with the lecture's text where it is at hand.
"""

from attnspec.spec.contract.sources import S1
from attnspec.spec.lectures.registry import Item, Lecture, Page, formula, line, page, passage, picture

_OUTLINES = page("Outlines", reason="the table of contents, shown before each part")
_STEP = page(
    "Sequence-to-sequence with attention",
    "luong_context_dot",
    "concat_output",
    items=[picture("luong_context_dot", "concat_output")],
)

# The page `Attention: in equations`, which first underlines its symbols.
_UNDERLINED = (
    formula(r"\underline{e^t} = [\underline{s_t^T h_1}, \dots, \underline{s_t^T h_N}] \in \mathbb{R}^N", "dot_scores"),
    formula(r"\underline{\alpha^t} = \text{softmax}(\underline{e^t}) \in \mathbb{R}^N", "softmax"),
    formula(
        r"\underline{a_t} = \sum_{i=1}^N \alpha_i^t \underline{h_i} \in \mathbb{R}^h",
        "attention_pooling",
        "luong_context_dot",
    ),
    formula(r"[\underline{a_t}; \underline{s_t}] \in \mathbb{R}^{2h}", "concat_output"),
)
_SCORES = formula(r"e^t = [s_t^T h_1, \dots, s_t^T h_N] \in \mathbb{R}^N", "dot_scores")
_WEIGHTS = formula(r"\alpha^t = \text{softmax}(e^t) \in \mathbb{R}^N", "softmax", "normalization.sums-to-one")
_POOLED = formula(r"a_t = \sum_{i=1}^N \alpha_i^t h_i \in \mathbb{R}^h", "attention_pooling", "luong_context_dot")
_OUTPUT = formula(r"[a_t; s_t] \in \mathbb{R}^{2h}", "concat_output")

# The page `Attention: definition`, which writes queries, keys and values as columns.
_PRODUCTS = formula(r"A = Q^T K \in \mathbb{R}^{n_q \times n_k}", "dot_scores")
_AS_WIDE = formula("d_q = d_k", "dot_scores", "dot_product_attention")
_ROWS = formula(r"A = \text{Softmax}(A) \in \mathbb{R}^{n_q \times n_k}", "softmax")
_SUM = formula(
    r"\text{Output} = V \cdot A^T \in \mathbb{R}^{d_v \times n_q}", "attention_pooling", "dot_product_attention"
)
_AS_MANY = formula("n_v = n_k", "attention_pooling", "dot_product_attention")
_PICTURE = picture("dot_product_attention")


def _equations(*items: Item) -> Page:
    return page("Attention: in equations", "dot_scores", "softmax", "attention_pooling", "concat_output", items=items)


def _definition(*items: Item) -> Page:
    return page("Attention: definition", "dot_product_attention", "dot_scores", items=items)


def _projections(*items: Item) -> Page:
    return page(
        "Self-Attention",
        "projected_self_attention",
        items=[
            passage("independent linear transformations", "Three independent linear", "projected_self_attention"),
            *items,
        ],
    )


_WITHOUT_VALUES = passage("without W_v", "If we omit", "projected_self_attention")
_COMPARISON = passage(
    "comparison with convolution and fully-connected layer",
    "Comparison with convolution",
    "attention.hardmax-limit",
    "convolution",
)

LECTURE = Lecture(
    S1,
    (
        page(
            "Attention Mechanism",
            reason="the title of the lecture",
            items=[
                line("Part 1", reason="the number of the lecture"),
                line("Zhengyang Wang", reason="the name of the lecturer"),
            ],
        ),
        _OUTLINES,
        _OUTLINES,
        *[_STEP] * 8,
        _equations(*_UNDERLINED),
        _OUTLINES,
        *[_equations(_SCORES, _WEIGHTS, _POOLED, _OUTPUT)] * 3,
        _equations(_SCORES, _WEIGHTS, _POOLED, line("Output", "attention_pooling"), _OUTPUT),
        _equations(_SCORES, _WEIGHTS, _POOLED, _OUTPUT),
        _equations(_SCORES, _WEIGHTS, _POOLED, line("Value vectors Input-3 ←", "attention_pooling"), _OUTPUT),
        _definition(),
        _definition(_PICTURE),
        _definition(_PRODUCTS),
        _definition(_PRODUCTS),
        _definition(_PRODUCTS, _AS_WIDE),
        _definition(_AS_WIDE),
        _definition(_PICTURE, _AS_WIDE, _ROWS),
        _definition(_PICTURE, _AS_WIDE, _ROWS, line("Row", "softmax")),
        *[_definition(_PICTURE, _AS_WIDE, _SUM)] * 2,
        _definition(_PICTURE, _AS_WIDE, _SUM, _AS_MANY),
        *[_definition(_PICTURE, _AS_WIDE, _AS_MANY, _SUM)] * 2,
        _OUTLINES,
        page("Use Attention", "luong_context_dot"),
        page(
            "Use Attention",
            "luong_context_dot",
            items=[
                passage("dot product + 1/n_k", "For example: dot product", "mean_normalization"),
                passage("use a neural network", "use a neural network", "additive_scores"),
            ],
        ),
        page("Use Attention", reason="a question: where queries, keys and values come from if there is one input"),
        *[
            page(
                "Use Attention",
                "dot_product_attention",
                items=[
                    passage(
                        "Q = K = V = X", "Q = K = V = X", "dot_product_attention", "attention.same-array-passed-twice"
                    ),
                ],
            )
        ]
        * 2,
        *[_projections()] * 3,
        _projections(_WITHOUT_VALUES),
        page("Self-Attention", "attention.hardmax-limit", items=[_WITHOUT_VALUES, _COMPARISON]),
        *[page("Self-Attention", "attention.hardmax-limit", "convolution", items=[_WITHOUT_VALUES, _COMPARISON])] * 2,
        page("Multi-Head Self-Attention", "concat_heads_attention", "projected_self_attention"),
    ),
)
