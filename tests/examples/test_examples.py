"""The examples: their data, both models in a few steps, and the command line."""

import datetime
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from examples.bahdanau import Bahdanau
from examples.cli import MODELS, app, decode_every_way, pointing
from examples.model import Model
from examples.tasks import EOS, TASKS, Pairs, Task
from examples.training import Plan, exact, learn, mean_negative_log_probability
from examples.transformer import Transformer

REVERSING, DATES = TASKS["reversing"], TASKS["dates"]
KINDS = pytest.mark.parametrize("kind", list(MODELS))


def new_model(kind: type[Bahdanau | Transformer], task: Task = REVERSING) -> Model:
    torch.manual_seed(0)
    return kind(task, size=16)


def drawn_pairs(task: Task = REVERSING, count: int = 40) -> Pairs:
    return task.split(count, 5, seed=0)[0]


# Data -----------------------------------------------------------------------------------------------------------------


def test_no_source_is_both_learned_and_held_out() -> None:
    learned, held_out = ({tuple(x) for x in p.sources.tolist()} for p in REVERSING.split(500, 200, seed=3))
    assert len(learned) == 500
    assert len(held_out) == 200
    assert not learned & held_out


def test_the_same_seed_draws_the_same_pairs() -> None:
    first, again, other = (DATES.split(20, 5, seed=s)[0].sources for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_words_are_reversed() -> None:
    for source, target in (REVERSING.draw(random.Random(i)) for i in range(50)):
        assert target == "".join(reversed(source))


def test_dates_are_written_in_one_way() -> None:
    seen = set()
    for source, target in (DATES.draw(random.Random(i)) for i in range(300)):
        date = datetime.date.fromisoformat(target)
        assert str(date.year) in source
        assert len(source) <= DATES.longest_source
        seen.add(re.sub(r"\d+", "0", re.sub(r"[a-z]+", "a", source)))
    assert seen == {"0 a 0", "a 0, 0", "a, 0 a 0", "a a 0 0", "0.0.0", "0/0/0"}


def test_tokens_of_a_pair() -> None:
    pairs = REVERSING.encoded([("abcd", "dcba")])
    assert pairs.sources.tolist() == [[1, 2, 3, 4, *[EOS] * 8]]
    assert pairs.targets.tolist() == [[4, 3, 2, 1, *[EOS] * 9]]
    assert pairs.previous_tokens.tolist() == [[EOS, 4, 3, 2, 1, *[EOS] * 8]]
    assert pairs.target_mask.tolist() == [[True] * 5 + [False] * 8]
    assert pairs.source_mask.tolist() == [[True] * 4 + [False] * 8]
    assert REVERSING.text(pairs.targets[0].tolist()) == "dcba"


@pytest.mark.parametrize("source", ["", "abcdefghijklm", "Ab"])
def test_a_source_that_cannot_be_read(source: str) -> None:
    with pytest.raises(ValueError, match=r"^reversing: expected 1 to 12 of the characters 'abc") as raised:
        REVERSING.encoded([(source, "")])
    assert str(raised.value).endswith(f"; got {source!r}")


# Models ---------------------------------------------------------------------------------------------------------------


@KINDS
def test_all_ways_of_decoding_agree(kind: type[Bahdanau | Transformer]) -> None:
    model = new_model(kind)
    learn(model, drawn_pairs(), Plan(steps=5, batch=16, rate=1e-2), title="")
    with torch.no_grad():
        # the fourth way, a wide beam, may choose other tokens
        greedy, *others = list(decode_every_way(model, drawn_pairs(), REVERSING).values())[:3]
    assert greedy.shape == (40, REVERSING.longest_target + 1)
    for tokens in others:
        assert torch.equal(tokens, greedy)


@KINDS
def test_greedy_tokens_are_the_most_probable_ones(kind: type[Bahdanau | Transformer]) -> None:
    model, pairs = new_model(kind), drawn_pairs()
    with torch.no_grad():
        tokens = model.greedy(pairs, REVERSING.longest_target + 1)
        spelled = Pairs(pairs.sources, pairs.lengths, tokens)
        best = model.log_probabilities(spelled).argmax(-1)
    assert torch.equal(best[spelled.target_mask], tokens[spelled.target_mask])


@KINDS
def test_a_wider_beam_is_scored_higher_in_the_mean(kind: type[Bahdanau | Transformer]) -> None:
    model, pairs, scores = new_model(kind), drawn_pairs(), []
    learn(model, pairs, Plan(steps=5, batch=16, rate=1e-2), title="")
    with torch.no_grad():
        for beams in (1, 2, 8):
            spelled = Pairs(pairs.sources, pairs.lengths, model.beam(pairs, REVERSING.longest_target + 1, beams))
            logarithms = model.log_probabilities(spelled).gather(-1, spelled.targets[..., None])[..., 0]
            scores.append(logarithms.where(spelled.target_mask, 0.0).sum(-1).mean().item())
    assert all(a < b for a, b in pairwise(scores))


@KINDS
def test_padding_does_not_count(kind: type[Bahdanau | Transformer]) -> None:
    model, pairs = new_model(kind), drawn_pairs()
    changed = Pairs(pairs.sources.where(pairs.source_mask, 7), pairs.lengths, pairs.targets)
    with torch.no_grad():
        assert torch.equal(model.log_probabilities(changed), model.log_probabilities(pairs))


@KINDS
def test_attention_is_a_distribution_over_what_was_read(kind: type[Bahdanau | Transformer]) -> None:
    pairs = drawn_pairs()
    with torch.no_grad():
        weights = new_model(kind).attention(pairs)
    assert weights.shape == (40, 13, 12)
    # Exponentials are divided by their own sum: 11 sums and a division, and as many for a mean over heads.
    assert (weights.double().sum(-1) - 1).abs().max() <= 24 * 2.0**-24
    assert not weights[~pairs.source_mask[:, None].expand_as(weights)].any()


@KINDS
def test_a_model_learns(kind: type[Bahdanau | Transformer]) -> None:
    model, pairs = new_model(kind), drawn_pairs()
    with torch.no_grad():
        before = mean_negative_log_probability(model, pairs).item()
    learn(model, pairs, Plan(steps=40, batch=32, rate=1e-2), title="")
    with torch.no_grad():
        assert mean_negative_log_probability(model, pairs).item() < 0.9 * before


# What is measured -----------------------------------------------------------------------------------------------------


def test_accuracy_counts_only_wholly_correct_targets() -> None:
    pairs = REVERSING.encoded([("abcd", "dcba")] * 4)
    tokens = pairs.targets.clone()
    tokens[0, 0] += 1
    tokens[1, -1] = 5
    assert exact(tokens, pairs) == 0.75


class Pointing(Bahdanau):
    """Attends to the mirrored place, or ``beside`` places after it."""

    beside = 0

    def attention(self, pairs: Pairs) -> Tensor:
        places = (pairs.lengths[:, None] - 1 - torch.arange(pairs.targets.shape[-1]) + self.beside).clamp(0, 11)
        return torch.nn.functional.one_hot(places, 12).float()


def test_pointing_accepts_weights_within_one_position_of_the_character() -> None:
    model, pairs, shares = Pointing(REVERSING, size=4), drawn_pairs(), []
    for beside in (0, 1, 2):
        model.beside = beside
        shares.append(pointing(model, pairs, REVERSING))
    assert shares[:2] == [1, 1]
    # ``clamp`` moves two positions of the longest sources back to within one
    assert shares[2] < 0.1


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "task"), [("bahdanau", "dates"), ("transformer", "reversing")])
def test_the_command_trains_compares_and_draws(command: str, task: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the pictures of the examples need Matplotlib")
    result = CliRunner().invoke(app, [command, "--task", task, "--steps", "2", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    for what in ("1,000 held-out pairs", "greedy, uncached", "beam of 4", "bits a token", f"{command}-{task}.png"):
        assert what in result.output
    assert ("± 1" in result.output) == (task == "reversing")
    assert (tmp_path / "new" / f"{command}-{task}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["--task", "sorting"], ["--steps", "0"], ["--out", __file__]])
def test_the_command_refuses(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["bahdanau", *arguments])
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.output
