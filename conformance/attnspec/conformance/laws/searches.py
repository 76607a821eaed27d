"""Checks of the laws of greedy decoding and of beam search."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubles, random_like, sample, together
from attnspec.conformance.laws.seq2seq import tokens_of
from attnspec.reference.budget import Judged
from attnspec.reference.defining.definition import REFERENCE
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.law import of
from attnspec.spec.laws import seq2seq as law
from attnspec.spec.seq2seq import AttentionDecoderParameters, GreedyDecode, TeacherForcedDecode


def _chosen(subject: Subject, arguments: Arguments) -> tuple[Numbers, Numbers]:
    """The chosen tokens and their score; a token outside the vocabulary is a violation."""
    operation, found = subject.operation, subject.results(arguments)
    (path,) = operation.chosen
    tokens, (_, last) = found[path], tokens_of(arguments)
    inside = bool(((tokens >= 0) & (tokens <= last)).all())
    subject.holds(inside, f"a token is none of 0..{last}", arguments, got=tokens)
    return tokens.astype(int), found[operation.leading.path]


def _end(arguments: Arguments) -> tuple[str, int]:
    """The path and the value of the token that ends a sentence."""
    operation = arguments.operation
    path = next(option.path for option in operation.options if option.path in operation.indices)
    return path, arguments[path]


def _up_to_the_end(tokens: Numbers, end: int) -> Numbers:
    """Mask of the tokens up to the first that ends the sentence."""
    ends = tokens == end
    counts: Numbers = np.cumsum(ends, axis=-1) - ends == 0
    return counts


def _logarithms(subject: Subject, arguments: Arguments, tokens: Numbers) -> tuple[Numbers, Numbers]:
    """The oracle's log P (*batch, steps, vocabulary) after each of these tokens, and its budgets."""
    forced = operation_of(TeacherForcedDecode)
    assert forced is not None
    (path,) = forced.indices
    first = np.broadcast_to(arguments.array(tokens_of(arguments)[0])[..., None], (*tokens.shape[:-1], 1))
    fed = np.concatenate([first, tokens], axis=-1)[..., : tokens.shape[-1]]
    taken = {name: x for name, x in arguments.values_by_name.items() if name in forced.call.names}
    found = subject.judged(REFERENCE[forced.name], {**taken, path: fed})
    every: Judged = found[0]
    return every.value, every.budget


def _score(subject: Subject, arguments: Arguments, tokens: Numbers) -> tuple[Numbers, Numbers]:
    """The oracle's score of tokens; its budget is a sum, since steps share the state."""
    p, (_, end) = subject.precision, _end(arguments)
    value, budget = (
        np.take_along_axis(x, tokens[..., None], axis=-1)[..., 0] for x in _logarithms(subject, arguments, tokens)
    )
    counts = _up_to_the_end(tokens, end)
    score, slack = (np.where(counts, x, 0).sum(-1) for x in (value, budget))
    rounding = tokens.shape[-1] * p.accumulation + p.output
    return score, (slack + rounding * np.abs(score) + p.output_smallest).astype(np.float64)


@checks(law.SCORE_OF_TOKENS)
def score_of_tokens(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the score with the reference's teacher forcing on the chosen tokens."""
    tokens, got = _chosen(subject, arguments)
    if not got.size:
        return False
    subject.matches(got, *_score(subject, arguments, tokens), arguments, "of the tokens, the score")
    return True


@checks(law.SCORE_OF_TOKENS, once=True)
def sentences_of_a_batch(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Score sentences whose end is improbable, then with the first one's first token as end."""
    several = sample(subject, rng, (16,), features=6)
    (p,) = (x for x in several.values_by_name.values() if isinstance(x, AttentionDecoderParameters))
    (path, end), bias = _end(several), p.b_o.copy()
    bias[end] = -8
    several = several.replaced({leaf.path: bias for leaf, x in several.floats if x is p.b_o})
    compared = 0
    for _ in range(2):
        if not subject.in_domain(several):
            break
        tokens, got = _chosen(subject, several)
        subject.matches(got, *_score(subject, several, tokens), several, "of the tokens of a sentence, the score")
        several = several.replaced({path: int(tokens.reshape(-1)[0])})
        compared += got.size
    return compared > 0


@checks(law.GREEDY_CHOICE, governs=of(GreedyDecode))
def greedy_choice(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that no other token is more probable, beyond both budgets, at any step."""
    tokens, _ = _chosen(subject, arguments)
    if not tokens.size:
        return False
    value, budget = _logarithms(subject, arguments, tokens)
    reached = np.take_along_axis(value + budget, tokens[..., None], axis=-1)[..., 0]
    best = (value - budget).max(-1)
    counts = _up_to_the_end(tokens, _end(arguments)[1])
    better = counts & (best > reached)
    subject.holds(
        not better.any(), "another token is more probable", arguments, got=tokens,
        expected=np.where(better, value.argmax(-1), tokens),
    )  # fmt: skip
    return True


@checks(law.STOPS_AT_EOS)
def stops_at_eos(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use as end the given token, then up to three tokens that were chosen."""
    path, end = _end(arguments)
    tokens, _ = _chosen(subject, arguments)
    ended = False
    for value in sorted({end, *tokens[..., :-1].reshape(-1)[:3].tolist()}):
        given = arguments.replaced({path: value})
        found, _ = _chosen(subject, given)
        behind = ~_up_to_the_end(found, value)
        subject.holds(
            bool((found[behind] == value).all()), f"another token follows {value}, the end", given, got=found,
            expected=np.where(behind, value, found),
        )  # fmt: skip
        ended |= bool(behind.any())
    return ended


@checks(law.GREEDY_CHOICE)
def first_of_equals(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Score all tokens as 0: the first is chosen, though the last ends sentences."""
    path, _ = _end(arguments)
    (p,) = (x for x in arguments.values_by_name.values() if isinstance(x, AttentionDecoderParameters))
    last = len(p.b_o) - 1
    scoring = {id(p.w_o), id(p.b_o)}
    zeros = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if id(x) in scoring}
    narrow = {size: min(arguments.size(size), last) for size in arguments.operation.sizes_of(Axis.BEAM)}
    if last < 1:
        return False
    given = arguments.replaced({**zeros, path: last, **narrow})
    tokens, _ = _chosen(subject, given)
    expected = np.zeros_like(tokens)
    subject.holds(bool((tokens == 0).all()), "not the first of equals", given, got=tokens, expected=expected)
    return bool(tokens.size)


@checks(law.BEAM_OF_ONE)
def beam_of_one(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the backend's beam of one hypothesis with its greedy decoding."""
    greedy = operation_of(GreedyDecode)
    other = None if greedy is None else subject.beside(greedy)
    if other is None:
        return False
    one = arguments.replaced(dict.fromkeys(subject.operation.sizes_of(Axis.BEAM), 1))
    values = one.values_by_name
    same = Arguments(other.operation, {name: values[name] for name in other.operation.call.names})
    if not other.in_domain(same):
        return False
    budgets = together(subject.budgets(one), other.budgets(same))
    subject.all_match(subject.results(one), doubles(other.results(same)), budgets, one, "with one hypothesis,")
    return bool(subject.call(one).size)


@checks(law.EXHAUSTIVE_BEAM, once=True)
def exhaustive_beam(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare an exhaustive beam with all sentences of three tokens out of three."""
    operation = subject.operation
    given = sample(subject, rng)
    for kind in (Axis.VOCABULARY, Axis.TIME):
        for size in operation.sizes_of(kind):
            given = given.along(size, keep(3))
    (path, _), (of_token, _) = _end(given), tokens_of(given)
    sentences = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    for _ in range(4):
        given = given.replaced(
            {leaf.path: random_like(x, rng, subject) for leaf, x in given.floats}
            | {path: int(rng.integers(3)), of_token: np.asarray(rng.integers(3))}
            | dict.fromkeys(operation.sizes_of(Axis.BEAM), len(sentences))
        )
        if not subject.in_domain(given):
            continue
        scores, slack = _score(subject, given, sentences)
        best = int(scores.argmax())
        _, got = _chosen(subject, given)
        budget = np.asarray(slack.max())
        subject.matches(got, np.asarray(scores[best]), budget, given, "of the best sentence, the score")
    return True
