"""Mutants of recurrent cells and sequences.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``differentiate`` computes the gradients. ``value_of(x)`` is x without its record of gradients,
so that no gradient flows through it. ``x * x.dtype.type(0)`` leaves x out but keeps its shape. S0 to S4 are sources of
the specification.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.recurrent import State, Step
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import flatten
from attnspec.spec.recurrent import (
    GRU,
    LSTM,
    RNN,
    BidirectionalGRU,
    BidirectionalLSTM,
    BidirectionalRNN,
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    RNNCell,
    RNNOutput,
    RNNParameters,
    RNNSelfAttention,
    StackedGRU,
    StackedLSTM,
    StackedRNN,
)


@mutant(
    "update gate inverted",
    replaces="gru_update",
    operations=(GRUCell,),
    breaks=(
        "semantics.gru_update",
        "recurrent.open-and-closed-gates",
        "operation.oracle",
        "operation.gradient",
    ),
    source="Chung et al. 2014, h = (1 − z) h + z h̃, against Cho et al. 2014",
)
def inverted_update(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """The new state is (1 − Z) ⊙ H + Z ⊙ H̃: Z and 1 − Z are exchanged."""
    return Formulas.gru_update(correct, 1 - update, h, candidate)


@mutant(
    "GRU gates exchanged",
    replaces="gru_gates",
    operations=(GRUCell,),
    breaks=("recurrent.open-and-closed-gates", "operation.oracle"),
    source="keras stacks the gates as z, r, h, torch.nn.GRU as r, z, n",
)
def exchanged_gru_gates(correct: Formulas, x: Numbers, h: Numbers, p: GRUParameters[Numbers]) -> tuple[Numbers, ...]:
    """Reset gate and update gate are exchanged."""
    reset, update = Formulas.gru_gates(correct, x, h, p)
    return update, reset


@mutant(
    "candidate without reset gate",
    replaces="gru_candidate",
    operations=(GRUCell,),
    breaks=("recurrent.open-and-closed-gates", "operation.oracle", "operation.gradient"),
    source="the minimal gated unit, from which the reset gate was dropped",
)
def without_reset(correct: Formulas, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
    """The candidate is computed without the reset gate."""
    return Formulas.gru_candidate(correct, x, h, reset * reset.dtype.type(0) + reset.dtype.type(1), p)


@mutant(
    "state added without the update gate",
    replaces="gru_update",
    operations=(GRUCell,),
    breaks=("recurrent.bounded-state", "operation.oracle"),
    source="a residual connection around the cell",
)
def residual_state(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """The new state is H + (1 − Z) ⊙ H̃: H is not multiplied by Z."""
    return h + (1 - update) * candidate


@mutant(
    "no gradient through the gates of a GRU",
    replaces="gru_gates",
    operations=(GRUCell,),
    breaks=("operation.gradient",),
    source="a gate computed under no_grad",
)
def detached_gates(correct: Formulas, x: Numbers, h: Numbers, p: GRUParameters[Numbers]) -> tuple[Numbers, ...]:
    """No gradient flows through the gates."""
    return tuple(value_of(gate) for gate in Formulas.gru_gates(correct, x, h, p))


@mutant(
    "input and forget gates exchanged",
    replaces="lstm_gates",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "recurrent.open-and-closed-gates", "operation.gradient"),
    source="keras-team/keras#9463: i, f, c, o against PyTorch's i, f, g, o",
)
def exchanged_gates(correct: Formulas, x: Numbers, h: Numbers, p: LSTMParameters[Numbers]) -> tuple[Numbers, ...]:
    """Input gate and forget gate are exchanged."""
    input_gate, forget_gate, output_gate, candidate = Formulas.lstm_gates(correct, x, h, p)
    return forget_gate, input_gate, output_gate, candidate


@mutant(
    "input gate coupled to the forget gate",
    replaces="next_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle",),
    source="the coupled gates of Greff et al. 2017 (CIFG), as in a GRU",
)
def coupled_gates(
    correct: Formulas, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers
) -> Numbers:
    """The input gate is 1 minus the forget gate, as in a GRU."""
    return Formulas.next_cell(correct, 1 - forget_gate, forget_gate, candidate, c)


@mutant(
    "candidate of the cell scaled by 1.5",
    replaces="next_cell",
    operations=(LSTMCell,),
    breaks=("recurrent.bounded-state",),
    source="LeCun's scaled tanh, 1.7159 tanh(2x/3), as activation",
)
def scaled_candidate(
    correct: Formulas, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers
) -> Numbers:
    """The candidate is multiplied by 1.5."""
    return Formulas.next_cell(correct, input_gate, forget_gate, candidate.dtype.type(1.5) * candidate, c)


@mutant(
    "hidden state and cell exchanged",
    replaces="lstm_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle",),
    source="frameworks return (h, c) and take (c, h)",
)
def exchanged_results(correct: Formulas, x: Numbers, state: State, parameters: LSTMParameters[Numbers]) -> State:
    """The results are (c, h) in place of (h, c)."""
    h, c = Formulas.lstm_cell(correct, x, state, parameters)
    return c, h


@mutant(
    "hidden state without tanh of the cell",
    replaces="lstm_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "recurrent.bounded-state"),
    source="the second activation left out",
)
def bare_cell(correct: Formulas, x: Numbers, state: State, parameters: LSTMParameters[Numbers]) -> State:
    """The hidden state is O ⊙ C in place of O ⊙ tanh C."""
    input_gate, forget_gate, output_gate, candidate = correct.lstm_gates(x, state[0], parameters)
    cell = correct.next_cell(input_gate, forget_gate, candidate, state[1])
    return output_gate * cell, cell


@mutant(
    "hard sigmoid",
    replaces="gate",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "operation.gradient"),
    source="keras's recurrent_activation was once hard_sigmoid",
)
def hard_sigmoid(correct: Formulas, x: Numbers) -> Numbers:
    """Gates are max(0, min(1, x/5 + 1/2)) in place of σ(x)."""
    line = x * x.dtype.type(0.2) + x.dtype.type(0.5)
    return np.maximum(np.minimum(line, x.dtype.type(1)), x.dtype.type(0))


@mutant(
    "ReLU in place of tanh",
    replaces="state_activation",
    operations=(RNNCell,),
    breaks=("scoring.tanh-odd-and-bounded", "recurrent.bounded-state", "operation.gradient"),
    source="torch.nn.RNN's nonlinearity='relu'",
)
def rectified_state(correct: Formulas, x: Numbers) -> Numbers:
    """The state is max(0, x) in place of tanh x."""
    return np.maximum(x, x.dtype.type(0))


@mutant(
    "1.7159 tanh(2x/3) in place of tanh",
    replaces="state_activation",
    operations=(RNNCell,),
    breaks=("recurrent.bounded-state", "operation.oracle"),
    source="1.7159 tanh(2x/3)",
)
def scaled_state(correct: Formulas, x: Numbers) -> Numbers:
    """The state is 1.7159 tanh(2x/3) in place of tanh x."""
    return x.dtype.type(1.7159) * np.tanh(x * x.dtype.type(2 / 3))


@mutant(
    "weights of the state transposed",
    replaces="rnn_cell",
    operations=(RNNCell,),
    breaks=("operation.oracle",),
    source="torch.nn.RNN's weights are (out, in), those of S4 (in, out)",
)
def transposed_state_weights(correct: Formulas, x: Numbers, state: Numbers, p: RNNParameters[Numbers]) -> Numbers:
    """The state is multiplied by W_hhᵀ in place of W_hh."""
    return correct.state_activation(correct.affine(x, state, p.w_xh, np.swapaxes(p.w_hh, 0, 1), p.b_h))


@mutant(
    "bias counted twice",
    replaces="rnn_cell",
    operations=(RNNCell,),
    breaks=("operation.oracle", "operation.gradient"),
    source="torch.nn.RNN has b_ih and b_hh, and one bias went into both",
)
def two_biases(correct: Formulas, x: Numbers, state: Numbers, p: RNNParameters[Numbers]) -> Numbers:
    """The bias b_h is added twice."""
    return correct.state_activation(correct.affine(x, state, p.w_xh, p.w_hh, p.b_h) + p.b_h)


@mutant(
    "tanh of the output",
    replaces="rnn_output",
    operations=(RNNOutput,),
    breaks=("recurrent.zero-state-outputs-bias", "operation.oracle"),
    source="Elman's network, whose outputs have an activation",
)
def squashed_output(correct: Formulas, state: Numbers, w_hq: Numbers, b_q: Numbers) -> Numbers:
    """The output passes through a tanh."""
    return np.tanh(Formulas.rnn_output(correct, state, w_hq, b_q))


@mutant(
    "output without its bias",
    replaces="rnn_output",
    operations=(RNNOutput,),
    breaks=("recurrent.zero-state-outputs-bias", "operation.gradient"),
    source="nn.Linear(…, bias=False)",
)
def without_output_bias(correct: Formulas, state: Numbers, w_hq: Numbers, b_q: Numbers) -> Numbers:
    """The output is H W, without its bias."""
    return Formulas.rnn_output(correct, state, w_hq, b_q * b_q.dtype.type(0))


# Lengths --------------------------------------------------------------------------------------------------------------


@mutant(
    "sequences one step too long",
    replaces="within_length",
    operations=(RNN, GRU, LSTM),
    breaks=("recurrent.padding-ignored", "masking.masking-equals-truncation", "operation.oracle"),
    source="t <= length in a loop that counts from 0",
)
def one_step_more(correct: Formulas, t: int, lengths: Numbers) -> Numbers:
    """Sequences are one step too long: the first step of padding counts as an input."""
    return t <= lengths


@mutant(
    "final state after the padding",
    replaces="hold_at_padding",
    operations=(LSTM, GRU, StackedRNN),
    breaks=("recurrent.resumes-from-state", "masking.masking-equals-truncation", "operation.oracle"),
    source="h_n of a padded batch that was not packed",
)
def final_after_padding(correct: Formulas, new: State, old: State, inside: Numbers, backward: bool) -> State:
    """The final state is that after padding, not that after the last input."""
    return new


@mutant(
    "states at padding not 0",
    replaces="zero_at_padding",
    operations=(RNN, LSTM, BidirectionalGRU),
    breaks=("recurrent.padding-ignored", "operation.oracle"),
    source="keras repeats the last state, torch pads with 0",
)
def repeated_states(correct: Formulas, hidden: Numbers, inside: Numbers) -> Numbers:
    """States at padding repeat the last state in place of 0."""
    return hidden


@mutant(
    "padding multiplied by 0",
    replaces="clear_padding",
    operations=(RNN, BidirectionalLSTM, StackedGRU),
    breaks=("recurrent.padding-ignored",),
    source="x * mask",
)
def multiplied_padding(correct: Formulas, x: Numbers, lengths: Numbers) -> Numbers:
    """The sum of the padding, multiplied by 0, is added to every step: NaN spreads."""
    clean = Formulas.clear_padding(correct, x, lengths)
    return clean + (np.sum(value_of(x) - value_of(clean), axis=-2, keepdims=True) * x.dtype.type(0))


@mutant(
    "NaN of padding in the gradient",
    replaces="differentiate",
    operations=(GRU, LSTM, RNNSelfAttention),
    breaks=("masking.masked-gets-no-gradient",),
    source="pytorch/pytorch#15131: where() after the step, not before it",
)
def padding_in_the_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """A NaN in an input, even at padding, makes the gradient of that element NaN."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    arrays = flatten(dict(arguments))
    return {path: g + 0 * arrays[path] for path, g in gradients.items()}


@mutant(
    "lengths of sequences not checked",
    replaces="check_lengths",
    operations=(LSTM, BidirectionalGRU, StackedRNN, RNNSelfAttention),
    breaks=("operation.rejection",),
    source="a length beyond the sequence counts as its whole",
)
def unchecked_lengths(correct: Formulas, lengths: Numbers, m: int) -> None:
    """Lengths beyond the sequence do not raise."""


@mutant(
    "length of the first sequence for all",
    replaces="within_length",
    operations=(LSTM, BidirectionalRNN),
    breaks=("operation.batch-invariance", "operation.oracle"),
    source="lengths[0], of a batch sorted by length",
)
def length_of_the_first(correct: Formulas, t: int, lengths: Numbers) -> Numbers:
    """All sequences of a batch have the length of the first one."""
    return t < (np.full_like(lengths, lengths.reshape(-1)[0]) if lengths.size else lengths)


# States ---------------------------------------------------------------------------------------------------------------


@mutant(
    "final state one step too early",
    replaces="sequence",
    operations=(RNN, GRU, LSTM),
    breaks=("recurrent.resumes-from-state", "recurrent.first-step-is-cell", "operation.oracle"),
    source="the state that entered the last step",
)
def final_too_early(
    correct: Formulas, step: Step, x: Numbers, initial: State, lengths: Numbers, backward: bool = False
) -> tuple[Numbers, State]:
    """The final state is h_{t−1}, one step too early."""
    states, _ = Formulas.sequence(correct, step, x, initial, lengths, backward)
    fewer = None if lengths is None else np.maximum(lengths - 1, 0)
    return states, Formulas.sequence(correct, step, x[..., : max(x.shape[-2] - 1, 0), :], initial, fewer, backward)[1]


@mutant(
    "sequences start from 0",
    replaces="broadcast_state",
    operations=(RNN, GRU, BidirectionalLSTM, StackedLSTM),
    breaks=("recurrent.resumes-from-state", "operation.oracle", "operation.gradient"),
    source="keras: the initial state is 0 unless it is passed on",
)
def started_from_zero(correct: Formulas, x: Numbers, initial: State, lengths: Numbers) -> State:
    """The initial state is ignored: sequences start from 0."""
    return tuple(part * part.dtype.type(0) for part in Formulas.broadcast_state(correct, x, initial, lengths))


@mutant(
    "candidate of the cell multiplied by 4",
    replaces="next_cell",
    operations=(LSTM,),
    breaks=("recurrent.bounded-state",),
    source="a candidate that reaches more than 1, step after step",
)
def growing_cell(
    correct: Formulas, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers
) -> Numbers:
    """The candidate is multiplied by 4: the cell grows by up to 4 a step."""
    return Formulas.next_cell(correct, input_gate, forget_gate, candidate.dtype.type(4) * candidate, c)


@mutant(
    "last odd step dropped",
    replaces="step_order",
    operations=(RNN, LSTM),
    breaks=("operation.shape",),
    source="a loop unrolled by 2 without a tail",
)
def dropped_step(correct: Formulas, steps: int, backward: bool) -> Sequence[int]:
    """The last of an odd number of 3 or more steps is not computed."""
    return Formulas.step_order(correct, steps, backward)[: steps - (steps > 1 and steps % 2)]


@mutant(
    "GRU sequences reset after the product",
    replaces="gru_candidate",
    operations=(GRU, BidirectionalGRU, StackedGRU),
    breaks=("semantics.gru_reset", "operation.oracle", "operation.gradient"),
    source="torch.nn.GRU for a model that was trained with reset_after=False",
)
def sequence_resets_after(
    correct: Formulas, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]
) -> Numbers:
    """In sequences, the reset gate multiplies the product: R ⊙ (H W_hh), not (R ⊙ H) W_hh."""
    return correct.state_activation(correct.reset_after_product(x, h, reset, p))


@mutant(
    "update gate inverted in sequences",
    replaces="gru_update",
    operations=(GRU, BidirectionalGRU, StackedGRU),
    breaks=("semantics.gru_update", "operation.oracle", "operation.gradient"),
    source="Chung et al. 2014, h = (1 − z) h + z h̃, against Cho et al. 2014",
)
def inverted_update_in_sequences(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """In sequences, the new state is (1 − Z) ⊙ H + Z ⊙ H̃: Z and 1 − Z are exchanged."""
    return Formulas.gru_update(correct, 1 - update, h, candidate)


@mutant(
    "forget and output gates exchanged in sequences",
    replaces="lstm_gates",
    operations=(LSTM, BidirectionalLSTM, StackedLSTM),
    breaks=("operation.oracle", "operation.gradient"),
    source="PyTorch stacks i, f, g, o, ONNX i, o, f, c",
)
def exchanged_gates_in_sequences(
    correct: Formulas, x: Numbers, h: Numbers, p: LSTMParameters[Numbers]
) -> tuple[Numbers, ...]:
    """Forget gate and output gate are computed from each other's weights."""
    input_gate, forget_gate, output_gate, candidate = Formulas.lstm_gates(correct, x, h, p)
    return input_gate, output_gate, forget_gate, candidate


@mutant(
    "initial state kept from the last call",
    operations=(LSTM, GRU),
    breaks=("operation.independent-of-other-calls",),
    source="keras: stateful=True without reset_states",
)
class Stateful(Formulas):
    """The initial state is the final state of the last call, if their shapes agree."""

    last_state: tuple[Any, ...] = ()

    def final_state(self, state: State) -> State:
        """Save the final state."""
        self.last_state = tuple(value_of(part) for part in state)
        return state

    def broadcast_state(self, x: Numbers, initial: State, lengths: Numbers) -> State:
        """The last final state if its shapes fit; otherwise the initial state."""
        fresh, last = Formulas.broadcast_state(self, x, initial, lengths), self.last_state
        return last if last and [part.shape for part in last] == [part.shape for part in fresh] else fresh


# Bidirectional --------------------------------------------------------------------------------------------------------


@mutant(
    "backward run begins with the padding",
    replaces="hold_at_padding",
    operations=(BidirectionalRNN, BidirectionalGRU, BidirectionalLSTM),
    breaks=("recurrent.reversal-swaps-halves", "masking.masking-equals-truncation", "operation.oracle"),
    source="keras-team/keras#4142: the padded batch reversed as a whole",
)
def backward_over_padding(correct: Formulas, new: State, old: State, inside: Numbers, backward: bool) -> State:
    """The backward run starts at the padding, not at the last input."""
    return new if backward else Formulas.hold_at_padding(correct, new, old, inside, backward)


@mutant(
    "directions exchanged",
    replaces="join_directions",
    operations=(BidirectionalRNN, BidirectionalLSTM),
    breaks=("recurrent.halves-see-one-direction", "operation.oracle"),
    source="[backward; forward]",
)
def exchanged_halves(correct: Formulas, forward: Numbers, backward: Numbers) -> Numbers:
    """States are [backward; forward] in place of [forward; backward]."""
    return Formulas.join_directions(correct, backward, forward)


@mutant(
    "directions added",
    replaces="join_directions",
    operations=(BidirectionalGRU,),
    breaks=("recurrent.halves-see-one-direction", "operation.oracle"),
    source="keras: merge_mode='sum'",
)
def added_halves(correct: Formulas, forward: Numbers, backward: Numbers) -> Numbers:
    """Both halves of the states are the sum of both directions."""
    return Formulas.join_directions(correct, forward + backward, forward + backward)


@mutant(
    "backward states in the order of computation",
    replaces="in_time_order",
    operations=(BidirectionalRNN, BidirectionalGRU),
    breaks=("recurrent.halves-see-one-direction", "operation.oracle"),
    source="tf.reverse_sequence forgotten after the backward run",
)
def not_turned_back(correct: Formulas, hidden: list[Numbers], backward: bool) -> list[Numbers]:
    """Backward states are in the order of computation: the first one is the last step's."""
    return hidden


@mutant(
    "forward parameters used for both directions",
    replaces="run_both_ways",
    operations=(BidirectionalRNN, BidirectionalGRU, BidirectionalLSTM),
    breaks=("recurrent.reversal-swaps-halves", "operation.oracle", "operation.gradient"),
    source="the parameters with suffix _reverse were not loaded",
)
def shared_network(
    correct: Formulas, step: Step, x: Numbers, initial: Sequence[State], parameters: Sequence[Any], lengths: Numbers
) -> tuple[Numbers, tuple[State, ...]]:
    """Both directions use the forward parameters."""
    return Formulas.run_both_ways(correct, step, x, initial, (parameters[0], parameters[0]), lengths)


@mutant(
    "final backward state of the last step",
    replaces="run_both_ways",
    operations=(BidirectionalRNN, BidirectionalGRU),
    breaks=("operation.oracle", "operation.gradient"),
    source="output[:, -1] in place of h_n; its backward half has seen one input",
)
def last_row_is_final(
    correct: Formulas, step: Step, x: Numbers, initial: Sequence[State], parameters: Sequence[Any], lengths: Numbers
) -> tuple[Numbers, tuple[State, ...]]:
    """The final backward state is that of the last step, which has seen one input."""
    states, (forward, backward) = Formulas.run_both_ways(correct, step, x, initial, parameters, lengths)
    width = states.shape[-1] // 2
    return states, (forward, (states[..., -1, width:],) if x.shape[-2] else backward)


@mutant(
    "no gradient through the backward run",
    replaces="join_directions",
    operations=(BidirectionalLSTM, BidirectionalRNN),
    breaks=("operation.gradient",),
    source="a reversal that copied the numbers out of the graph",
)
def detached_backward(correct: Formulas, forward: Numbers, backward: Numbers) -> Numbers:
    """No gradient flows through the backward run."""
    return Formulas.join_directions(correct, forward, value_of(backward))


# Stacks ---------------------------------------------------------------------------------------------------------------


@mutant(
    "every layer starts from the first state",
    replaces="initial_row",
    operations=(StackedRNN, StackedGRU, StackedLSTM),
    breaks=("transformer.stack-is-composition", "recurrent.resumes-from-state", "operation.oracle"),
    source="one initial state passed to all layers",
)
def first_row(correct: Formulas, layer: int) -> int:
    """Every layer starts from the initial state of the first."""
    return 0


@mutant(
    "residual connections between layers",
    replaces="next_inputs",
    operations=(StackedRNN, StackedLSTM),
    breaks=("transformer.stack-is-composition", "operation.oracle"),
    source="Wu et al. 2016 (GNMT), section 3.1",
)
def residual_layers(correct: Formulas, x: Numbers, states: Numbers, layer: int) -> Numbers:
    """From the second layer on, the inputs of a layer are added to its states."""
    return states + x if layer else states


@mutant(
    "last layer left out",
    replaces="run_layers",
    operations=(StackedRNN, StackedGRU),
    breaks=("transformer.stack-is-composition", "operation.oracle", "operation.gradient"),
    source="the states of all layers but one collected, and the last of these returned",
)
def without_last_layer(
    correct: Formulas, step: Step, x: Numbers, initial: State, layers: Sequence[Any], lengths: Numbers
) -> tuple[Numbers, State]:
    """The states are those of the last layer but one, if there are several."""
    states, finals = Formulas.run_layers(correct, step, x, initial, layers, lengths)
    if len(layers) < 2:
        return states, finals
    below = tuple(part[..., :-1, :] for part in initial)
    return Formulas.run_layers(correct, step, x, below, layers[:-1], lengths)[0] + states * 0, finals


@mutant(
    "final states of layers in reverse",
    replaces="run_layers",
    operations=(StackedGRU, StackedLSTM),
    breaks=("recurrent.resumes-from-state", "operation.oracle"),
    source="the top layer first",
)
def reversed_finals(
    correct: Formulas, step: Step, x: Numbers, initial: State, layers: Sequence[Any], lengths: Numbers
) -> tuple[Numbers, State]:
    """Final states are listed from the last layer to the first."""
    states, finals = Formulas.run_layers(correct, step, x, initial, layers, lengths)
    return states, tuple(part[..., ::-1, :] for part in finals)


# Self-attention -------------------------------------------------------------------------------------------------------


@mutant(
    "a state attends to itself too",
    replaces="earlier_steps",
    operations=(RNNSelfAttention,),
    breaks=("recurrent.context-of-earlier-states", "operation.oracle"),
    source="the causal mask of transformers, j ≤ i",
)
def itself_too(correct: Formulas, steps: int) -> Numbers:
    """Every state attends to itself, too."""
    return correct.causal_mask(steps, steps)


@mutant(
    "states attend to later ones",
    replaces="earlier_steps",
    operations=(RNNSelfAttention,),
    breaks=("masking.future-invariance", "operation.oracle"),
    source="S2's masked decoder, i ≤ j as printed",
)
def later_ones(correct: Formulas, steps: int) -> Numbers:
    """Every state attends to later states in place of earlier ones."""
    return correct.causal_mask(steps, steps, include_self=False).T


@mutant(
    "contexts divided by the number of steps",
    replaces="rnn_self_attention",
    operations=(RNNSelfAttention,),
    breaks=("recurrent.context-of-earlier-states", "operation.oracle", "operation.gradient"),
    source="a mean over time in place of the softmax",
)
def averaged_states(
    correct: Formulas, x: Numbers, state: Numbers, parameters: Any, *, lengths: Numbers = None
) -> tuple[Numbers, Numbers, Numbers]:
    """The context of step t, counted from 1, is divided by t."""
    contexts, states, final = Formulas.rnn_self_attention(correct, x, state, parameters, lengths=lengths)
    counts = np.maximum(np.arange(x.shape[-2]), 1).astype(x.dtype)[:, None]
    return contexts / (counts + x.dtype.type(1)), states, final


# Gradients ------------------------------------------------------------------------------------------------------------


@mutant(
    "truncated backpropagation through time",
    replaces="sequence",
    operations=(RNN, GRU, LSTM, StackedLSTM),
    breaks=("operation.gradient",),
    source="h.detach() between chunks of a sequence",
)
def truncated_backpropagation(
    correct: Formulas, step: Step, x: Numbers, initial: State, lengths: Numbers, backward: bool = False
) -> tuple[Numbers, State]:
    """No gradient flows from a step to the states before it, the initial state excepted."""

    def detached(row: Numbers, state: State) -> State:
        return step(row, state if state is initial_state else tuple(map(value_of, state)))

    initial_state = correct.broadcast_state(x, initial, lengths)
    return Formulas.sequence(correct, detached, x, initial_state, lengths, backward)


@mutant(
    "no gradient of the initial state",
    replaces="broadcast_state",
    operations=(GRU, LSTM, BidirectionalRNN, StackedGRU),
    breaks=("operation.gradient",),
    source="the initial state detached between batches",
)
def detached_start(correct: Formulas, x: Numbers, initial: State, lengths: Numbers) -> State:
    """The initial state gets no gradient."""
    return tuple(value_of(part) for part in Formulas.broadcast_state(correct, x, initial, lengths))


@mutant(
    "no gradient through the final state",
    replaces="final_state",
    operations=(RNN, LSTM, BidirectionalGRU, StackedRNN),
    breaks=("operation.gradient",),
    source="a backward pass that takes the gradient of the outputs alone",
)
def detached_final(correct: Formulas, state: State) -> State:
    """No gradient flows through the final state."""
    return tuple(value_of(part) for part in state)


@mutant(
    "no gradient through the update gate in sequences",
    replaces="gru_update",
    operations=(GRU, StackedGRU),
    breaks=("operation.gradient",),
    source="a fused backward pass that forgets dZ",
)
def detached_update(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """No gradient flows through the update gate Z."""
    return Formulas.gru_update(correct, value_of(update), h, candidate)
