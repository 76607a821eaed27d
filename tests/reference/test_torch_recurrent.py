"""Recurrent networks of the reference against torch.nn in float64, on packed sequences."""

from typing import Any

import numpy as np
import pytest

from attnspec.reference import REFERENCE, choosing
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters
from tests.budgets import assert_within_budgets

torch = pytest.importorskip("torch", reason="the optional dependency torch is not installed")

D, H, T = 5, 3, 6
GATES = {"rnn": "h", "gru": "rzh", "lstm": "ifco"}
"""The gates, by their letters in S4, in PyTorch's order."""
RECORDS: dict[str, Any] = {"rnn": RNNParameters, "gru": GRUParameters, "lstm": LSTMParameters}


def network(kind: str, **options: Any) -> Any:
    """A network of torch.nn; the reset bias of a GRU's candidate is 0, since ours has none."""
    torch.manual_seed(0)
    module = getattr(torch.nn, kind.upper())(D, H, batch_first=True, dtype=torch.float64, **options)
    if kind == "gru":
        for name, bias in module.named_parameters():
            if name.startswith("bias_hh"):
                bias.data[2 * H :] = 0
    return module


def parameters(kind: str, theirs: Any, suffix: str) -> Any:
    """One layer and direction of a network, as the record of our parameters; PyTorch's weights are (out, in)."""
    of = {name: getattr(theirs, f"{name}_{suffix}").detach().numpy() for name in ("weight_ih", "weight_hh")}
    bias = (getattr(theirs, f"bias_ih_{suffix}") + getattr(theirs, f"bias_hh_{suffix}")).detach().numpy()
    rows = {gate: slice(i * H, (i + 1) * H) for i, gate in enumerate(GATES[kind])}
    return RECORDS[kind](
        **{f"w_x{g}": of["weight_ih"][r].T for g, r in rows.items()},
        **{f"w_h{g}": of["weight_hh"][r].T for g, r in rows.items()},
        **{f"b_{g}": bias[r] for g, r in rows.items()},
    )


def run(theirs: Any, x: Any, state: list[Any], lengths: Any) -> tuple[Any, list[Any]]:
    """States, and the parts of the final state (layers·directions, n, h)."""
    initial = [torch.from_numpy(part) for part in state]
    inputs = torch.from_numpy(x)
    if lengths is not None:
        inputs = torch.nn.utils.rnn.pack_padded_sequence(
            inputs, torch.from_numpy(lengths), batch_first=True, enforce_sorted=False
        )
    states, final = theirs(inputs, tuple(initial) if len(initial) > 1 else initial[0])
    if lengths is not None:
        states, _ = torch.nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=T)
    parts = final if isinstance(final, tuple) else (final,)
    return states.detach().numpy(), [part.detach().numpy() for part in parts]


def state_of(kind: str, parts: list[Any]) -> Any:
    """The pair of an LSTM, or the state of another network."""
    return tuple(parts) if kind == "lstm" else parts[0]


def assert_theirs_is_ours(operation: str, theirs: Any, *arguments: Any, lengths: Any) -> None:
    with choosing(gru_reset="after"):
        ours = REFERENCE[operation](*arguments, lengths=lengths)
        assert_within_budgets([theirs, ours], operation, *arguments, lengths=lengths)


each = pytest.mark.parametrize("kind", GATES)
with_lengths = pytest.mark.parametrize("lengths", [None, np.array([6, 1, 4])], ids=["whole", "packed"])


def drawn(runs: int, kind: str) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(3, T, D)), [rng.normal(size=(runs, 3, H)) for _ in range(1 + (kind == "lstm"))]


@with_lengths
@each
def test_networks_in_one_direction_match_torch_nn(kind: str, lengths: Any) -> None:
    theirs, (x, state) = network(kind), drawn(1, kind)
    states, final = run(theirs, x, state, lengths)
    initial, last = (state_of(kind, [part[0] for part in parts]) for parts in (state, final))
    assert_theirs_is_ours(kind, (states, last), x, initial, parameters(kind, theirs, "l0"), lengths=lengths)


@with_lengths
@each
def test_networks_in_both_directions_match_torch_nn(kind: str, lengths: Any) -> None:
    theirs, (x, state) = network(kind, bidirectional=True), drawn(2, kind)
    states, final = run(theirs, x, state, lengths)
    initial, last = (tuple(state_of(kind, [part[i] for part in parts]) for i in range(2)) for parts in (state, final))
    both = tuple(parameters(kind, theirs, suffix) for suffix in ("l0", "l0_reverse"))
    assert_theirs_is_ours(f"bidirectional_{kind}", (states, last), x, initial, both, lengths=lengths)


@with_lengths
@each
def test_stacked_networks_match_torch_nn(kind: str, lengths: Any) -> None:
    theirs, (x, state) = network(kind, num_layers=3), drawn(3, kind)
    states, final = run(theirs, x, state, lengths)
    initial, last = (state_of(kind, [np.moveaxis(part, 0, -2) for part in parts]) for parts in (state, final))
    layers = tuple(parameters(kind, theirs, f"l{i}") for i in range(3))
    assert_theirs_is_ours(f"stacked_{kind}", (states, last), x, initial, layers, lengths=lengths)
