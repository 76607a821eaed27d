"""Checks of the laws of greedy decoding and of beam search. Options of ``@checks``: see ``Check``."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubles, random_like, sample, sum_budgets
from attnspec.conformance.laws.seq2seq import tokens_of
from attnspec.reference.budget import Judged
from attnspec.reference.defining.definition import REFERENCE
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.law import of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind
from attnspec.spec.laws import operation as operation_law
from attnspec.spec.laws import seq2seq as law
from attnspec.spec.seq2seq import AttentionDecoderParameters, BeamDecode, GreedyDecode, TeacherForcedDecode

LENGTH_ROUNDINGS = 8
"""Roundings of a length penalty, by logarithm and exponential, and of the division by it."""


def _tokens_and_score(subject: Subject, arguments: Arguments) -> tuple[Numbers, Numbers]:
    """The chosen tokens and their score; tokens outside of the vocabulary are a violation."""
    operation, results = subject.operation, subject.results(arguments)
    (path,) = operation.chosen
    tokens, (_, last_token) = results[path], tokens_of(arguments)
    in_vocabulary = bool(((tokens >= 0) & (tokens <= last_token)).all())
    subject.demand(in_vocabulary, f"a token is outside 0..{last_token}", arguments, got=tokens)
    return tokens.astype(int), results[operation.leading.path]


def _end_token(arguments: Arguments) -> tuple[str, int]:
    operation = arguments.operation
    path = next(option.path for option in operation.options if option.path in operation.indices)
    return path, arguments[path]


def _penalty_path(operation: Operation) -> str:
    """Path of the exponent of the length penalty; empty without one."""
    return next((option.path for option in operation.options if option.kind is Kind.NUMBER), "")


def _length_penalty(arguments: Arguments) -> float:
    path = _penalty_path(arguments.operation)
    return float(arguments[path]) if path else 0.0


def _until_end(tokens: Numbers, end: int) -> Numbers:
    """Mask of the tokens up to the first end token."""
    ends = tokens == end
    before_end: Numbers = np.cumsum(ends, axis=-1) - ends == 0
    return before_end


def _logarithms(subject: Subject, arguments: Arguments, tokens: Numbers) -> tuple[Numbers, Numbers]:
    """The oracle's log P (*batch, steps, vocabulary) at every step, and its budget."""
    operation = operation_of(TeacherForcedDecode)
    assert operation is not None
    (path,) = operation.indices
    first = np.broadcast_to(arguments.array(tokens_of(arguments)[0])[..., None], (*tokens.shape[:-1], 1))
    inputs_of_steps = np.concatenate([first, tokens], axis=-1)[..., : tokens.shape[-1]]
    shared_arguments = {name: x for name, x in arguments.values_by_name.items() if name in operation.call.names}
    judged_results = subject.with_budgets(REFERENCE[operation.name], {**shared_arguments, path: inputs_of_steps})
    judged: Judged = judged_results[0]
    return judged.value, judged.budget


def _score(subject: Subject, arguments: Arguments, tokens: Numbers) -> tuple[Numbers, Numbers]:
    """The oracle's score of tokens, with length penalty; budgets of steps add, since steps share the state."""
    precision, (_, end) = subject.precision, _end_token(arguments)
    judged = _logarithms(subject, arguments, tokens)
    value, budget = (np.take_along_axis(x, tokens[..., None], axis=-1)[..., 0] for x in judged)
    before_end = _until_end(tokens, end)
    score, slack = (np.where(before_end, x, 0).sum(-1) for x in (value, budget))
    penalty = ((5 + before_end.sum(-1)) / 6) ** _length_penalty(arguments)
    score, slack = score / penalty, slack / penalty
    rounding = (tokens.shape[-1] + LENGTH_ROUNDINGS) * precision.accumulation + precision.output
    return score, (slack + rounding * np.abs(score) + precision.output_smallest).astype(np.float64)


@checks(law.SCORE_SUMS_LOG_PROBABILITIES)
def score_sums_log_probabilities(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the score with the reference's teacher forcing on the chosen tokens."""
    tokens, got = _tokens_and_score(subject, arguments)
    if not got.size:
        return False
    subject.demand_match(got, *_score(subject, arguments, tokens), arguments, "of the tokens, the score")
    return True


@checks(law.SCORE_SUMS_LOG_PROBABILITIES, once=True)
def sentences_of_a_batch(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Score 16 sentences with an improbable end; again with the very first token as end."""
    sampled = sample(subject, rng, (16,), features=6)
    (parameters,) = (x for x in sampled.values_by_name.values() if isinstance(x, AttentionDecoderParameters))
    (path, end), bias = _end_token(sampled), parameters.b_o.copy()
    bias[end] = -8
    sampled = sampled.replaced({leaf.path: bias for leaf, x in sampled.floats if x is parameters.b_o})
    count = 0
    for _ in range(2):
        if not subject.in_domain(sampled):
            break
        tokens, got = _tokens_and_score(subject, sampled)
        subject.demand_match(got, *_score(subject, sampled, tokens), sampled, "of the tokens of a sentence, the score")
        sampled = sampled.replaced({path: int(tokens.reshape(-1)[0])})
        count += got.size
    return count > 0


@checks(law.GREEDY_TAKES_MOST_PROBABLE, governs=of(GreedyDecode))
def greedy_takes_most_probable(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that no other token is more probable at any step, beyond both budgets."""
    tokens, _ = _tokens_and_score(subject, arguments)
    if not tokens.size:
        return False
    value, budget = _logarithms(subject, arguments, tokens)
    reached = np.take_along_axis(value + budget, tokens[..., None], axis=-1)[..., 0]
    best = (value - budget).max(-1)
    before_end = _until_end(tokens, _end_token(arguments)[1])
    better = before_end & (best > reached)
    expected, message = np.where(better, value.argmax(-1), tokens), "a token that is not the most probable is chosen"
    subject.demand(not better.any(), message, arguments, got=tokens, expected=expected)
    return True


@checks(law.NOTHING_AFTER_EOS)
def nothing_after_eos(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use several end tokens: that of the example, and up to three chosen tokens."""
    path, end = _end_token(arguments)
    tokens, _ = _tokens_and_score(subject, arguments)
    ended = False
    for value in sorted({end, *tokens[..., :-1].reshape(-1)[:3].tolist()}):
        changed = arguments.replaced({path: value})
        chosen, _ = _tokens_and_score(subject, changed)
        after_end = ~_until_end(chosen, value)
        expected = np.where(after_end, value, chosen)
        message = f"after the end token, {value}, another token follows"
        subject.demand(np.array_equal(chosen, expected), message, changed, got=chosen, expected=expected)
        ended |= bool(after_end.any())
    return ended


@checks(law.GREEDY_TAKES_MOST_PROBABLE)
def first_of_equals(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Score all tokens as 0: the first must be chosen, not the end token."""
    path, _ = _end_token(arguments)
    (parameters,) = (x for x in arguments.values_by_name.values() if isinstance(x, AttentionDecoderParameters))
    last = len(parameters.b_o) - 1
    scoring = {id(parameters.w_o), id(parameters.b_o)}
    zeros = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if id(x) in scoring}
    beams = {size: min(arguments.size(size), last) for size in arguments.operation.sizes_of(Axis.BEAM)}
    if last < 1:
        return False
    changed = arguments.replaced({**zeros, path: last, **beams})
    tokens, _ = _tokens_and_score(subject, changed)
    message = "of equally probable tokens, not the first is chosen"
    subject.demand(not tokens.any(), message, changed, got=tokens, expected=np.zeros_like(tokens))
    return bool(tokens.size)


@checks(law.BEAM_OF_ONE_IS_GREEDY)
def beam_of_one_is_greedy(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the backend's beam of one hypothesis with its greedy decoding."""
    greedy = operation_of(GreedyDecode)
    other = None if greedy is None else subject.for_operation(greedy)
    if other is None:
        return False
    operation, penalty = subject.operation, _penalty_path(subject.operation)
    one = dict.fromkeys(operation.sizes_of(Axis.BEAM), 1)
    beam = arguments.replaced({**one, **({penalty: operation.defaults[penalty]} if penalty else {})})
    values = beam.values_by_name
    plain = Arguments(other.operation, {name: values[name] for name in other.operation.call.names})
    if not other.in_domain(plain):
        return False
    budgets = sum_budgets(subject.budgets(beam), other.budgets(plain))
    subject.all_match(subject.results(beam), doubles(other.results(plain)), budgets, beam, "with one hypothesis,")
    return bool(subject.call(beam).size)


@checks(operation_law.ORACLE, once=True, leading_dtype_only=True, governs=of(BeamDecode))
def penalised_beams(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Prune narrow beams under a great length penalty: a few sentences in 100 depend on it."""
    operation, penalty = subject.operation, _penalty_path(subject.operation)
    if not subject.limits.has(penalty):
        return False
    numbers = {Axis.TIME: 6, Axis.VOCABULARY: 4, Axis.BEAM: 2}
    sizes = {size: number for axis, number in numbers.items() for size in operation.sizes_of(axis)}
    tried = False
    for _ in range(3):
        penalised = sample(subject, rng, (256,), sizes=sizes).replaced({penalty: 4.0})
        if subject.in_domain(penalised):
            subject.follows_formula(penalised, "with a length penalty,")
            tried = True
    return tried


@checks(law.EXHAUSTIVE_BEAM_IS_OPTIMAL, once=True)
def exhaustive_beam_is_optimal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare a beam of all 27 sentences of three tokens with the best; at last with a penalty."""
    operation = subject.operation
    drawn = sample(subject, rng)
    for kind in (Axis.VOCABULARY, Axis.TIME):
        for size in operation.sizes_of(kind):
            drawn = drawn.along(size, keep(3))
    (path, _), (of_token, _) = _end_token(drawn), tokens_of(drawn)
    sentences = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    penalty = _penalty_path(operation)
    tried = operation.trial_values[penalty] if subject.limits.has(penalty) else ()
    for i in range(6):
        drawn = drawn.replaced(
            {leaf.path: random_like(x, rng, subject) for leaf, x in drawn.floats}
            | {path: int(rng.integers(3)), of_token: np.asarray(rng.integers(3))}
            | dict.fromkeys(operation.sizes_of(Axis.BEAM), len(sentences))
            | ({penalty: tried[0]} if tried and i > 3 else {})
        )
        if not subject.in_domain(drawn):
            continue
        scores, slack = _score(subject, drawn, sentences)
        best = int(scores.argmax())
        _, got = _tokens_and_score(subject, drawn)
        budget = np.asarray(slack.max())
        subject.demand_match(got, np.asarray(scores[best]), budget, drawn, "of the best sentence, the score")
    return True
