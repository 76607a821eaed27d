"""Options count in pairs, forward and backward: ``quick`` convicts a library that forgets one beside another."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.mutants import MUTANTS, Mutant, mutant
from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.ignored import NAMES, optional_of
from attnspec.conformance.running.trials import Task, perform
from attnspec.conformance.variants import VARIANTS
from attnspec.spec import OPERATIONS
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import GroupedQueryAttention

pytestmark = pytest.mark.slow

OPTIONS = list(optional_of(OPERATIONS["grouped_query_attention"]))


def beside(*steps: int) -> list[tuple[str, str]]:
    """Every option with those that follow it by these steps, the first ones after the last."""
    count = len(OPTIONS)
    return [(OPTIONS[i], OPTIONS[(i + step) % count]) for step in steps for i in range(count)]


def given(arguments: Mapping[str, Any]) -> set[str]:
    """The options of a call that do not have their defaults."""
    return {name for name in OPTIONS if arguments.get(name) is not None and arguments[name] is not False}


def without(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments without one of them."""
    return {n: x for n, x in arguments.items() if n != name}


def forgetting(name: str, other: str) -> Mutant:
    """A library that ignores an option in calls with this other one and no third."""

    def prepared(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """An option forgotten beside another one."""
        found = Library.prepared(correct, operation, arguments)
        return without(found, name) if given(found) == {name, other} else found

    return mutant(
        f"{name} forgotten beside {other}", replaces="prepared", operations=(GroupedQueryAttention,),
        breaks=("operation.option-effect",), source="none", register=False,
    )(prepared)  # fmt: skip


def forgetting_backward(name: str, other: str) -> Mutant:
    """A library whose backward pass alone ignores an option in such calls."""

    def differentiated(
        correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
    ) -> dict[str, Numbers]:
        """Gradients without an option that the forward pass has."""
        whole = Library.differentiated(correct, operation, arguments, cotangent)
        if given(arguments) != {name, other}:
            return whole
        bare = Library.differentiated(correct, operation, without(arguments, name), cotangent)
        return {path: bare.get(path, np.zeros_like(g)) for path, g in whole.items()}

    return mutant(
        f"{name} forgotten beside {other}", replaces="differentiated", operations=(GroupedQueryAttention,),
        breaks=("training.options",), source="none", register=False,
    )(differentiated)  # fmt: skip


def convicted(subject: Mutant) -> bool:
    """True if its law convicts it at any of three seeds."""
    (law,) = subject.breaks
    return any(perform(Task(subject, "quick", seed, law=law)).failures for seed in range(3))


def test_every_optional_argument_has_a_mutant_that_ignores_it() -> None:
    provided = [o for o in OPERATIONS.values() if not o.reference_only]
    assert {name for o in provided for name in optional_of(o)} == set(NAMES)
    assert set(OPTIONS) <= set(NAMES)
    assert len(OPTIONS) == 9


@pytest.mark.parametrize(("name", "other"), beside(1, 5))
def test_an_option_forgotten_beside_another_is_convicted(name: str, other: str) -> None:
    assert convicted(forgetting(name, other))


@pytest.mark.parametrize(("name", "other"), beside(3))
def test_an_option_forgotten_in_the_backward_pass_is_convicted(name: str, other: str) -> None:
    assert convicted(forgetting_backward(name, other))


@pytest.mark.parametrize(("law", "seed"), [("training.options", 0), ("operation.gradient", 1)])
def test_means_over_all_keys_have_gradients_where_they_are_declared(law: str, seed: int) -> None:
    uniform = VARIANTS["fully masked rows are uniform, declared"]
    task = Task(uniform, "quick", seed, law=law, operation="grouped_query_attention")
    assert perform(task).failures == ()


def test_no_mutant_has_the_name_of_an_honest_variant() -> None:
    assert not {*MUTANTS} & {*VARIANTS}
