"""Module of a Llama decoder layer."""

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnspec.backends.pytorch.kernels import grouped_query_attention, rotary_embedding
from attnspec.backends.pytorch.nn.conversion import check, check_no_dropout, refuse
from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import check_sizes, copied
from attnspec.backends.pytorch.transformer import gated_feed_forward, rms_norm
from attnspec.spec import GatedFeedForwardParameters


class LlamaLayer(nn.Module):
    """Causal grouped-query attention with rotary positions, and a SwiGLU network.

    Both have a residual connection; their inputs are RMS-normalized. There are no biases.

    Args:
        d_model: features, d.
        nhead: heads of queries, which divide ``d_model``.
        dim_feedforward: hidden units, f.
        nhead_k: heads of keys and values, which divide ``nhead``; ``nhead`` unless given.
        epsilon: ε of the normalizations.
        theta: Θ of the rotary embedding.

    Shape: x (*batch, n, d), and so is the result. The mask is boolean, True = may attend, and broadcasts to
        (*batch, n, n); positions (*batch, n) are 0 to n − 1 unless given. Weights w_q (heads, p, d), w_k and w_v
        (heads_k, p, d), w_o (d, heads·p), w_gate and w_up (f, d), w_down (d, f), attention_gain and
        feed_forward_gain (d). Rotary pairs are neighbouring features of w_q and w_k.
    Initialisation: as ``nn.Linear``, uniform within 1/√inputs; gains are 1.
    Errors: ``ValueError`` for sizes below 1, if heads do not divide, and for an odd number of features per head.
    Source: operations ``rms_norm``, ``rotary_embedding``, ``grouped_query_attention`` and ``gated_feed_forward``.

    >>> layer = LlamaLayer(16, 4, 32, nhead_k=2)
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, *, nhead_k: int | None = None, epsilon: float = 1e-6,
        theta: float = 10000.0,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        nhead_k = nhead if nhead_k is None else nhead_k
        check_sizes("LlamaLayer", d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward, nhead_k=nhead_k)
        if nhead % nhead_k:
            refuse("LlamaLayer", "nhead", f"a multiple of nhead_k = {nhead_k}", nhead)
        if d_model % (2 * nhead):
            refuse("LlamaLayer", "d_model", f"an even number of features for each of {nhead} heads", d_model)
        p, self.epsilon, self.theta = d_model // nhead, epsilon, theta
        self.w_q = parameter(nhead, p, d_model, device=device, dtype=dtype)
        self.w_k, self.w_v = (parameter(nhead_k, p, d_model, device=device, dtype=dtype) for _ in range(2))
        self.w_o = parameter(d_model, d_model, device=device, dtype=dtype)
        self.w_gate, self.w_up = (parameter(dim_feedforward, d_model, device=device, dtype=dtype) for _ in range(2))
        self.w_down = parameter(d_model, dim_feedforward, device=device, dtype=dtype)
        self.attention_gain, self.feed_forward_gain = (parameter(d_model, device=device, dtype=dtype) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; gains become 1."""
        for w in (self.w_q, self.w_k, self.w_v, self.w_o, self.w_gate, self.w_up, self.w_down):
            draw(linear_bound(w.shape[-1]), w)
        for gain in (self.attention_gain, self.feed_forward_gain):
            nn.init.ones_(gain)

    def extra_repr(self) -> str:
        """Show the sizes, ε and Θ."""
        (heads, _, d), hidden = self.w_q.shape, self.w_gate.shape[0]
        sizes = f"d_model={d}, nhead={heads}, dim_feedforward={hidden}, nhead_k={self.w_k.shape[0]}"
        return f"{sizes}, epsilon={self.epsilon:g}, theta={self.theta:g}"

    def forward(self, x: Tensor, *, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the layer's output for x."""
        y = rms_norm(x, self.attention_gain, epsilon=self.epsilon)
        query, key, value = (
            functional.linear(y, w.flatten(0, 1)).reshape(*y.shape[:-1], *w.shape[:2]).transpose(-3, -2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        t = None if positions is None else positions.unsqueeze(-2)
        query, key = (rotary_embedding(z, t, theta=self.theta) for z in (query, key))
        attended, _ = grouped_query_attention(query, key, value, mask=mask, causal=True)
        x = x + functional.linear(attended.transpose(-3, -2).flatten(-2), self.w_o)
        network: GatedFeedForwardParameters[Tensor] = GatedFeedForwardParameters(self.w_gate, self.w_up, self.w_down)
        return x + gated_feed_forward(rms_norm(x, self.feed_forward_gain, epsilon=self.epsilon), network)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.Module) -> Self:
        """Return a layer with a copy of a ``LlamaDecoderLayer``'s weights, in the same mode.

        That is the class of Hugging Face transformers, which rotates feature i with i + p/2: features of queries and
        keys are reordered. ``ValueError`` for another class, biases, scaled rotary frequencies, other activations than
        silu, dropout in training, and heads that do not have d_model features together.
        """
        caller = "LlamaLayer.from_torch"
        name = "transformers.models.llama.modeling_llama.LlamaDecoderLayer"
        if f"{type(module).__module__}.{type(module).__qualname__}" != name:
            refuse(caller, "module", f"a {name}", type(module).__name__)
        source: Any = module  # PyTorch annotates attributes as tensors or modules
        attention, network = source.self_attn, source.mlp
        config, d = attention.config, attention.config.hidden_size
        check_no_dropout(caller, module, attention.attention_dropout)
        check(caller, "hidden_act", config.hidden_act, "silu", "the network is SwiGLU")
        check(caller, "rope_type", config.rope_parameters["rope_type"], "default", "frequencies are not scaled")
        check(caller, "attention_bias", config.attention_bias, False, "the formula has no biases")
        check(caller, "mlp_bias", config.mlp_bias, False, "the formula has no biases")
        heads, heads_k = config.num_attention_heads, config.num_key_value_heads
        check(caller, "head_dim", attention.head_dim, d // heads, "all heads together have d_model features")
        weight = attention.q_proj.weight
        layer = cls(
            d, heads, config.intermediate_size, nhead_k=heads_k, epsilon=source.input_layernorm.variance_epsilon,
            theta=config.rope_parameters["rope_theta"], device=weight.device, dtype=weight.dtype,
        )  # fmt: skip

        def in_pairs(w: Tensor) -> Tensor:
            p = d // heads
            return w.reshape(-1, 2, p // 2, d).transpose(1, 2).reshape(-1, p, d)

        weights = {
            "w_q": in_pairs(attention.q_proj.weight),
            "w_k": in_pairs(attention.k_proj.weight),
            "w_v": attention.v_proj.weight.reshape(heads_k, -1, d),
            "w_o": attention.o_proj.weight,
            "w_gate": network.gate_proj.weight,
            "w_up": network.up_proj.weight,
            "w_down": network.down_proj.weight,
            "attention_gain": source.input_layernorm.weight,
            "feed_forward_gain": source.post_attention_layernorm.weight,
        }
        for own, w in weights.items():
            setattr(layer, own, nn.Parameter(copied(w)))
        return layer.train(module.training)
