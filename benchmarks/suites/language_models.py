"""Suite of the operations of today's language models, against what PyTorch's users write."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.spec import GatedFeedForwardParameters
from benchmarks.case import FORWARD, OURS, WITH_BACKWARD, Case, Subject, compiled, make_call
from benchmarks.suites.settings import Inputs, Settings

SUITE, EAGER = "language_models", "eager"
BATCH, WIDTH, HIDDEN, HEADS, FEATURES = 4, 512, 1024, 8, 64
EPSILON, THETA = 1e-6, 10000.0


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / √(mean x² + ε) w."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def gelu(x: Tensor) -> Tensor:
    """x/2 (1 + erf(x/√2))."""
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def gated_network(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """W_down(silu(W_gate x) ∘ W_up x)."""
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


def our_gated_network(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Compute the same by the backend."""
    return pytorch.gated_feed_forward(x, GatedFeedForwardParameters(w_gate=w_gate, w_up=w_up, w_down=w_down))


def angles(x: Tensor) -> Tensor:
    """Angles (n, pairs) of rotary embeddings; in float64, since float32 loses digits of large positions."""
    n, d = x.shape[-2:]
    frequencies = THETA ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    return torch.arange(n, dtype=torch.float64, device=x.device).unsqueeze(-1) * frequencies


def rotary(x: Tensor) -> Tensor:
    """Pairs of neighbouring features, rotated."""
    angle = angles(x)
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1).flatten(-2)


def complex_rotary(x: Tensor) -> Tensor:
    """Compute the same as products of complex numbers."""
    angle = angles(x)
    turns = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(-2)


def sigmoid_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """σ(qk/√d) v."""
    return torch.sigmoid(query @ key.mT * query.shape[-1] ** -0.5) @ value


def indexer(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    """Σ_h w_h relu(q_h k)."""
    return torch.einsum("bnh,bhnm->bnm", weights, torch.relu(query @ key.unsqueeze(-3).mT))


def short_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """PyTorch's convolution of every feature with its own filter, after zeros."""
    padded = F.pad(x.mT, (weight.shape[-1] - 1, 0))
    return F.conv1d(padded, weight.unsqueeze(-2), groups=len(weight)).mT


def our_short_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the same by the backend."""
    return pytorch.short_convolution(x, weight, x.new_zeros(len(x), weight.shape[-1] - 1, x.shape[-1]))[0]


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None = None, beta: Tensor | None = None
) -> Tensor:
    """Linear attention step by step: S ← diag(e^g) S, u = β(v − Sᵀk), S ← S + kuᵀ, o = Sᵀq/√d."""
    state = key.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1])
    factors, query, outputs = None if decay is None else decay.exp(), query * query.shape[-1] ** -0.5, []
    for i in range(key.shape[-2]):
        row, written = key[..., i : i + 1, :], value[..., i : i + 1, :]
        if factors is not None:
            state = factors[..., i, :].unsqueeze(-1) * state
        if beta is not None:
            written = beta[..., i, None, None] * (written - row @ state)
        state = state + row.mT * written
        outputs.append(query[..., i : i + 1, :] @ state)
    return torch.cat(outputs, -2)


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None = None, beta: Tensor | None = None
) -> Tensor:
    """Compute the same by the backend."""
    state = key.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1])
    return pytorch.linear_attention(query, key, value, state, decay=decay, beta=beta)[0]


@dataclass(frozen=True)
class Computation:
    """Formula, operation of the backend, and another way by PyTorch's own operators, if there is one.

    The last ``shared`` inputs have no batch dimension.
    """

    formula: Callable[..., Tensor]
    ours: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    shared: int = 0
    own: Callable[..., Tensor] | None = None
    compiles: bool = True


def computations(draw: Inputs, n: int) -> dict[str, Computation]:
    """All computations by name, with their inputs at one size."""
    x, gain = draw.normal(BATCH, n, WIDTH), draw.normal(WIDTH)
    weights = tuple(draw.normal(*shape, scale=WIDTH**-0.5) for shape in ((HIDDEN, WIDTH), (HIDDEN, WIDTH)))
    down, taps = draw.normal(WIDTH, HIDDEN, scale=HIDDEN**-0.5), draw.normal(WIDTH, 4)
    query, key, value = (draw.normal(1, HEADS, n, FEATURES) for _ in range(3))
    one, indexed = draw.normal(1, n, FEATURES), draw.normal(1, n, HEADS)
    unit, beta = F.normalize(key, dim=-1), draw.normal(1, HEADS, n).sigmoid()
    decay, decays = (F.logsigmoid(draw.normal(1, HEADS, n, d)) for d in (1, FEATURES))

    def gated(decay: Tensor) -> Computation:
        return Computation(recurrence, linear_attention, (query, key, value, decay), compiles=False)

    def gated_delta(decay: Tensor) -> Computation:
        return Computation(recurrence, linear_attention, (query, unit, value, decay, beta), compiles=False)

    return {
        "RMS norm": Computation(
            rms_norm, lambda x, w: pytorch.rms_norm(x, w, epsilon=EPSILON), (x, gain), 1,
            lambda x, w: F.rms_norm(x, w.shape, w, EPSILON)),
        "GELU": Computation(gelu, pytorch.gelu, (x,), own=F.gelu),
        "gated network": Computation(gated_network, our_gated_network, (x, *weights, down), 3),
        "rotary embedding": Computation(rotary, pytorch.rotary_embedding, (query,), own=complex_rotary),
        "sigmoid attention": Computation(sigmoid_attention, pytorch.sigmoid_attention, (query, key, value)),
        "indexer": Computation(indexer, pytorch.indexer_scores, (query, one, indexed)),
        "short convolution": Computation(short_convolution, our_short_convolution, (x, taps), 1),
        "gated linear attention": gated(decay),
        "gated linear attention by feature": gated(decays),
        "gated delta rule": gated_delta(decay),
        "gated delta rule by feature": gated_delta(decays),
    }  # fmt: skip


def cases(settings: Settings) -> Iterator[Case]:
    """Cases of n tokens."""
    for n in settings.chosen((64, 512, 4096), (64,)):
        for name in computations(Inputs(settings.device), 1):
            for mode in (FORWARD, WITH_BACKWARD):
                yield case(settings, n, name, mode)


def case(settings: Settings, n: int, name: str, mode: str) -> Case:
    """Case of one computation at one size, whose whole results and gradients are compared."""
    chosen = computations(Inputs(settings.device), n)[name]
    inputs = chosen.inputs

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        return make_call(mode, chosen.formula, [x.to(dtype) for x in inputs])()

    def subjects() -> Iterator[Subject]:
        yield Subject(EAGER, lambda: make_call(mode, chosen.formula, inputs))
        why = "" if chosen.compiles else "it would unroll a loop over all steps"
        yield Subject("torch.compile", lambda: make_call(mode, compiled(chosen.formula), inputs), why, compiles=True)
        own = chosen.own
        if own is not None:
            yield Subject("PyTorch's own", lambda: make_call(mode, own, inputs))
        yield Subject(OURS, lambda: make_call(mode, chosen.ours, inputs))

    return Case(
        SUITE, name, mode, sizes={"B": len(inputs[0]), "n": n}, size=n,
        work=float(sum(x.nbytes for x in inputs)), unit="B", ceiling="memory",
        subjects=list(subjects()), formula=formula, comparable=lambda results: [x.detach() for x in results],
        baseline=EAGER, shared=chosen.shared,
    )  # fmt: skip
