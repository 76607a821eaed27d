"""S2: Zhang, CS 182/282A Spring 2022, Discussion 7.

Each page, figure and formula is listed with the owners that specify it, or with the reason why it has none. Owners are
operations such as ``softmax``, laws, which have a dot, and errata or misprints such as ``S2-variance``.
``tests/spec/test_lectures.py`` looks them up, and compares headings, captions, LaTeX and the first words of passages,
their second argument, with the lecture's text where it is at hand.
"""

from attnspec.spec.contract.sources import S2
from attnspec.spec.lectures.registry import Lecture, figure, formula, page, passage

_MEAN = ("dot_product_mean", "moments.mean-and-variance")
_VARIANCE = ("dot_product_variance", "moments.mean-and-variance")

LECTURE = Lecture(
    S2,
    (
        page(
            "CS 182/282A Spring 2022 Designing, Visualizing and Understanding Deep Neural Networks",
            reason="the title of the discussion",
        ),
        page(
            "1 Attention Mechanisms",
            reason="what attention is for: history and motivation",
            items=[
                passage("Figure 5", "as shown in Figure 5", "S2-figure"),
                figure(
                    "Figure 1: Attention Mechanism Illustrated", reason="a picture of layers that remember and decide"
                ),
            ],
        ),
        page(
            "1.1 Luong Attention",
            "luong_context_dot",
            "attentional_state",
            "S2-states-of-the-context",
            items=[
                figure("Figure 2: Luong Attention", "luong_context_dot", "attentional_state"),
                passage(
                    "footnote 1",
                    "alignment score ¹",
                    "general_scores",
                    "location_scores",
                    "general_attention",
                    "luong_context_general",
                    "luong_context_location",
                ),
                passage(
                    "attentional state", "we compute a transformation", "attentional_state", "S2-state-of-the-encoder"
                ),
            ],
        ),
        page(
            "1.2 Self-Attention in Transformer Networks",
            "projected_self_attention",
            items=[
                figure(
                    "Figure 3: Computing K, Q, V from input embeddings in a Transformer Network",
                    "projected_self_attention",
                ),
                figure("Figure 4: Computing Attention Scores from K, Q, V", "projected_self_attention"),
                passage("analogy", "Comparing to the Luong attention", "dot_product_attention", "S2-key-and-query"),
            ],
        ),
        page("Problem: Attention in RNNs", "rnn_self_attention"),
        page(
            "Solution: Attention in RNNs",
            "rnn_self_attention",
            "masking.strict-mask-excludes-diagonal",
            items=[
                formula("e_{t,l} = score(h_t, h_l)", "rnn_self_attention"),
                formula(
                    r"\alpha_{t,l} = \frac{\exp(e_{t,l})}{\sum_{j} \exp(e_{t,j})}",
                    "rnn_self_attention",
                    "S2-range-of-the-sum",
                ),
                formula(r"a_t = \sum_{j=1}^{t-1} \alpha_{t,j} h_j", "rnn_self_attention", "S2-first-state"),
            ],
        ),
        page("Problem: Generalized Attention in Matrix Form", "dot_product_attention"),
        page(
            "Solution: Generalized Attention in Matrix Form",
            "dot_product_attention",
            items=[formula(r"a(Q, K, V) = \operatorname{Softmax}(QK^{\top})V", "dot_product_attention")],
        ),
        page("Problem: Justifying Scaled Self-Attention", "dot_product_mean", *_VARIANCE, "scaled_dot_scores"),
        page(
            "Solution: Justifying Scaled Self-Attention",
            "dot_product_mean",
            *_VARIANCE,
            items=[
                passage("solution 1", "1.", *_MEAN),
                formula(r"\mathbb{E}[q^{\top}k] = \mathbb{E}\left[\sum_{i=1}^{d} q_i k_i\right]", *_MEAN),
                formula(r"= \sum_{i=1}^{d} \mathbb{E}[q_i k_i]", *_MEAN),
                formula(r"= \sum_{i=1}^{d} \mu_i^2", *_MEAN),
                formula(r"= \mu^{\top}\mu", *_MEAN),
                passage("solution 2", "2. First, notice that", *_VARIANCE, "S2-variance", "S2-independence"),
                formula(r"Var\left(\sum_{i=1}^{n} X_i\right) = \sum_{i=1}^{n} Var(X_i)", *_VARIANCE),
                formula(
                    r"\begin{aligned} Var(q^\top k) &= \mathbb{E}[(q^\top k)^2] - \mathbb{E}[q^\top k]^2 "
                    r"\\ &= \mathbb{E}[q^\top k k^\top q] - (\mu^\top \mu)^2 "
                    r"\\ &= \mathbb{E}[Tr(qq^\top k k^\top)] - (\mu^\top \mu)^2 "
                    r"\\ &= Tr(\mathbb{E}[qq^\top]\mathbb{E}[kk^\top]) - (\mu^\top \mu)^2 "
                    r"\\ &= Tr((\mathbb{E}[q]\mathbb{E}[q^\top] + \sigma^2 I)(\mathbb{E}[k]\mathbb{E}[k^\top] + "
                    r"\sigma^2 I)) - (\mu^\top \mu)^2 "
                    r"\\ &= Tr((\mu\mu^\top + \sigma^2 I)(\mu\mu^\top + \sigma^2 I)) - (\mu^\top \mu)^2 "
                    r"\\ &= Tr(\mu\mu^\top \mu\mu^\top) + 2\sigma^2 Tr(\mu\mu^\top) + Tr(\sigma^4 I) - (\mu^\top "
                    r"\mu)^2 "
                    r"\\ &= \mu^\top \mu\mu^\top \mu + 2\sigma^2 \mu^\top \mu + d\sigma^4 - (\mu^\top \mu)^2 "
                    r"\\ &= 2d\sigma^2 \mu^\top \mu + d\sigma^4 \end{aligned}",
                    *_VARIANCE,
                    "S2-variance",
                    "S2-independence",
                ),
                passage("solution 3", "is linear in d. As d grows larger", *_VARIANCE),
                passage("solution 4", "4. With the scaling term", "scaled_dot_scores", *_VARIANCE),
            ],
        ),
        page(
            "1.3 Tutorials on Attention Networks and Eager Execution on Tensorflow",
            reason="a link to a tutorial on the web",
        ),
        page(
            "2 Transformers",
            "encoder_decoder",
            items=[
                figure(
                    "Figure 5: Overview of Transformer architecture",
                    "encoder_decoder",
                    "encoder_layer",
                    "decoder_layer",
                ),
            ],
        ),
        page("2.1 Notations", "embed", "padding_mask"),
        page("2.2 Transformer Encoders", reason="the title of a section"),
        page("Input & Positional Embedding", "embed", "add_positions", "positional.adding-zero"),
        page(
            "Encoder Attention",
            "projected_self_attention",
            "scaled_dot_product_attention",
            items=[
                formula("Q = X_{source}W_Q", "projected_self_attention"),
                formula("K = X_{source}W_K", "projected_self_attention"),
                formula("V = X_{source}W_V", "projected_self_attention"),
                formula(
                    r"C_{update} = \operatorname{softmax} \left(\frac{QK^\top}{\sqrt{D}} \right) V",
                    "projected_self_attention",
                    "scaled_dot_product_attention",
                ),
                passage(
                    "heads",
                    "One of the key changes",
                    "split_heads",
                    "merge_heads",
                    "multi_head_attention",
                    "S2-head-scale",
                    "S2-heads-of-the-update",
                ),
                passage("padding", "We finally consider padding", "padding_mask", "S2-adding-infinity"),
            ],
        ),
        page("Feedforward Layer", "feed_forward", "encoder_layer"),
        page("2.3 Transformer Decoder", "decoder_layer", "decoder_stack"),
        page("Masked Decoder Self-Attention", "causal_mask", "S2-masked-decoder"),
        page("Encoder-Decoder Attention", "cross_attention"),
        page("Problem: Machine Translation", reason="the questions; their solutions have owners"),
        page(
            "Solution: Machine Translation",
            "sinusoidal_positional_encoding",
            items=[
                passage(
                    "solution 1",
                    "1. Position encoding is used",
                    "sinusoidal_positional_encoding",
                    "learned_positions",
                    "S2-no-way-to-know",
                    "S2-nearby-positions",
                ),
                passage("solution 2", "2. Multi-Head attention allows", "multi_head_attention"),
                passage(
                    "solution 3",
                    "3. (1)",
                    "self_attention_complexity",
                    "projected_self_attention_complexity",
                    "cross_attention_complexity",
                    "multi_head_attention_complexity",
                    "decoder_attention_complexity",
                    "encoder_decoder_attention_complexity",
                    "S2-projections",
                ),
                passage(
                    "solution 4",
                    "4. No. The encoder activations",
                    "cached_decoder_step",
                    "decoder_attention_complexity",
                    "encoder_decoder_attention_complexity",
                    "S2-another-language",
                ),
            ],
        ),
        page("2.4 Why Transformers", "self_attention_complexity"),
    ),
)
