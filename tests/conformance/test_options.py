"""``quick`` convicts a library that forgets one option beside another, forward or backward."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.mutants import MUTANTS, Mutant, mutant
from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.ignored import NAMES, optional_of
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.conformance.variants import VARIANTS
from attnspec.spec import OPERATIONS
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import GroupedQueryAttention

pytestmark = pytest.mark.slow

OPTIONS = list(optional_of(OPERATIONS["grouped_query_attention"]))


def option_pairs(*steps: int) -> list[tuple[str, str]]:
    """Pairs of options whose places in the cyclic list differ by these steps."""
    count = len(OPTIONS)
    return [(OPTIONS[i], OPTIONS[(i + step) % count]) for step in steps for i in range(count)]


def options_of(arguments: Mapping[str, Any]) -> set[str]:
    """The options of a call that differ from their defaults."""
    return {name for name in OPTIONS if arguments.get(name) is not None and arguments[name] is not False}


def without(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {n: x for n, x in arguments.items() if n != name}


def forgetting_forward(name: str, other: str) -> Mutant:
    """A library that ignores an option in calls with exactly one other option."""

    def prepared(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """An option forgotten beside another one."""
        call = Library.prepare(correct, operation, arguments)
        return without(call, name) if options_of(call) == {name, other} else call

    return mutant(
        f"{name} forgotten beside {other}", replaces="prepare", operations=(GroupedQueryAttention,),
        breaks=("operation.options-have-effect",), source="none", register=False,
    )(prepared)  # fmt: skip


def forgetting_backward(name: str, other: str) -> Mutant:
    """A library that ignores the option in such calls, but only in the backward pass."""

    def differentiated(
        correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
    ) -> dict[str, Numbers]:
        """Gradients without an option that the forward pass has."""
        with_option = Library.differentiate(correct, operation, arguments, cotangent)
        if options_of(arguments) != {name, other}:
            return with_option
        without_option = Library.differentiate(correct, operation, without(arguments, name), cotangent)
        return {path: without_option.get(path, np.zeros_like(g)) for path, g in with_option.items()}

    return mutant(
        f"{name} forgotten beside {other}", replaces="differentiate", operations=(GroupedQueryAttention,),
        breaks=("training.options-affect-gradients",), source="none", register=False,
    )(differentiated)  # fmt: skip


def convicted(subject: Mutant) -> bool:
    """True if the mutant's law convicts it at one of three seeds."""
    (law,) = subject.breaks
    return any(run_trial(Trial(subject, "quick", seed, law=law)).failures for seed in range(3))


def test_every_optional_argument_has_a_mutant_that_ignores_it() -> None:
    provided = [o for o in OPERATIONS.values() if not o.reference_only]
    assert {name for o in provided for name in optional_of(o)} == set(NAMES)
    assert set(OPTIONS) <= set(NAMES)
    assert len(OPTIONS) == 9


@pytest.mark.parametrize(("name", "other"), option_pairs(1, 5))
def test_an_option_forgotten_beside_another_is_convicted(name: str, other: str) -> None:
    assert convicted(forgetting_forward(name, other))


@pytest.mark.parametrize(("name", "other"), option_pairs(3))
def test_an_option_forgotten_in_the_backward_pass_is_convicted(name: str, other: str) -> None:
    assert convicted(forgetting_backward(name, other))


@pytest.mark.parametrize(("law", "seed"), [("training.options-affect-gradients", 0), ("operation.gradient", 1)])
def test_a_variant_with_uniform_masked_rows_has_right_gradients(law: str, seed: int) -> None:
    uniform = VARIANTS["fully masked rows are uniform, declared"]
    trial = Trial(uniform, "quick", seed, law=law, operation="grouped_query_attention")
    assert run_trial(trial).failures == ()


def test_no_mutant_has_the_name_of_an_honest_variant() -> None:
    assert not {*MUTANTS} & {*VARIANTS}
