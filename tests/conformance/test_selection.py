"""Selections by name: unknown names, patterns, and selections without anything to judge."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance import judge, tolerance
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.running.planning import Plan, check_names
from attnspec.conformance.running.selection import matching, unknown_name
from attnspec.conformance.running.settings import Settings
from attnspec.spec import LAWS, OPERATIONS, Limits
from attnspec.spec.contract.close_names import MAX_LISTED

DEFAULTS = Settings()
CONTRACT = Contract.of(SimpleNamespace(name="mine", dot_scores=reference.dot_scores, softmax=reference.softmax))
MANY = [f"name-{letter}" for letter in "abcdefghij"]


def test_a_message_lists_all_of_few_names() -> None:
    assert (
        unknown_name("x", "zzz", MANY[:MAX_LISTED]) == f"x: expected one of {', '.join(MANY[:MAX_LISTED])}; got 'zzz'"
    )
    assert unknown_name("x", "zzz", ["a"]) == "x: expected one of a; got 'zzz'"


def test_a_message_lists_the_closest_of_many_names() -> None:
    names = [*MANY, "softmax"]
    assert unknown_name("law", "sofmax", names) == "law: expected one of softmax, …; got 'sofmax'"
    assert unknown_name("law", "%%%", names) == f"law: expected one of {', '.join(names[:MAX_LISTED])}, …; got '%%%'"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Softmax", "softmax"),
        ("LSTM", "lstm"),
        ("SDPA", "scaled_dot_product_attention"),
        ("mha", "multi_head_attention"),
        ("MultiHeadAttention", "multi_head_attention"),
        ("multi-head attention", "multi_head_attention"),
    ],
)
def test_names_in_another_case_and_initials_are_understood(written: str, meant: str) -> None:
    message = unknown_name("operation", written, OPERATIONS)
    assert message.startswith(f"operation: expected one of {meant}, ")
    assert message.endswith(f", …; got {written!r}. 'attnspec list' lists all")


def test_messages_about_operations_and_laws_name_the_command_that_lists_them() -> None:
    assert unknown_name("law", "orakel", LAWS).endswith("; got 'orakel'. 'attnspec list laws' lists all")
    with pytest.raises(ValueError, match=r"^judge: expected one of .*; got 'sdp'\. 'attnspec list' lists all$"):
        judge("sdp", None)
    with pytest.raises(ValueError, match=r"^tolerance: expected one of .*; got 'sdp'\. 'attnspec list' lists all$"):
        tolerance("sdp")
    assert "attnspec list" not in unknown_name("--operation", "sdp", OPERATIONS, ", which the backend provides")


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        (["name-a"], ["name-a"]),
        (["name-[ab]", "name-c"], ["name-a", "name-b", "name-c"]),
        (["*"], MANY),
        (["NAME-a"], []),
        ([], []),
    ],
)
def test_patterns_select_in_the_order_of_the_names(patterns: list[str], selected: list[str]) -> None:
    assert matching(patterns, MANY) == selected


@pytest.mark.parametrize("settings", [DEFAULTS, replace(DEFAULTS, operations=("softmax",), dtypes=("float32",))])
def test_a_plan_has_the_laws_that_govern_what_is_selected(settings: Settings) -> None:
    cases = Plan.of(CONTRACT, settings).cases
    assert {c.operation for c in cases} == set(settings.operations or CONTRACT.operations)
    assert {c.dtype for c in cases} == set(settings.dtypes or CONTRACT.limits.dtypes)
    for case in cases:
        assert list(case.laws) == [x.id for x in LAWS.values() if OPERATIONS[case.operation] in x.operations]


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"profile": "slow"}, "profile: expected one of quick, full, release; got 'slow'"),
    ({"operations": ("softmaxx",)}, "operation: expected one of softmax,"),
    ({"laws": ("operation.oracle", "operation.orakel")}, "law: expected one of operation.oracle,"),
    ({"dtypes": ("float8",)}, "dtype: expected one of"),
]


@pytest.mark.parametrize(("chosen", "message"), UNKNOWN, ids=[next(iter(c)) for c, _ in UNKNOWN])
def test_an_unknown_name_is_refused(chosen: dict[str, Any], message: str) -> None:
    settings = replace(DEFAULTS, **chosen)
    with pytest.raises(BackendError) as error:
        Plan.of(CONTRACT, settings)
    assert str(error.value).startswith(message)
    with pytest.raises(BackendError) as error:
        check_names(settings, "--")
    assert str(error.value).startswith(f"--{message}")


def test_an_operation_that_only_the_reference_has_cannot_be_selected() -> None:
    names = [o.name for o in OPERATIONS.values() if o.reference_only]
    assert names
    for name in names:
        with pytest.raises(BackendError, match="operation: expected one of"):
            check_names(replace(DEFAULTS, operations=(name,)))


MISSING: list[tuple[dict[str, Any], str]] = [
    (
        {"device": "cuda:0"},
        "--device: expected one of cpu, the backend's limits; got 'cuda'; "
        'declare limits = {"devices": ("cpu", "cuda")} to try it',
    ),
    (
        {"dtypes": ("bfloat16",)},
        "--dtype: expected one of float64, float32, the backend's limits; got 'bfloat16'; "
        'declare limits = {"dtypes": ("float64", "float32", "bfloat16")} to try it',
    ),
    (
        {"operations": ("mean_normalization",)},
        "--operation: expected one of dot_scores, softmax, which the backend provides; got 'mean_normalization'",
    ),
    (
        {"operations": ("softmax",), "laws": ("scoring.isometry-invariance",)},
        "nothing to judge: no law of the selection governs an operation of the selection",
    ),
]


@pytest.mark.parametrize(("chosen", "message"), MISSING, ids=["device", "dtype", "operation", "law"])
def test_a_selection_that_the_backend_does_not_provide_is_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError) as error:
        Plan.of(CONTRACT, replace(DEFAULTS, **chosen))
    assert str(error.value) == message


DEVICES = [(("cuda",), "cuda"), (("cpu", "cuda"), "cpu"), (("cpu",), "cpu")]


@pytest.mark.parametrize(("declared", "device"), DEVICES)
def test_the_only_declared_device_is_the_default(declared: tuple[str, ...], device: str) -> None:
    contract = replace(CONTRACT, limits=Limits(devices=declared))
    assert Plan.of(contract, DEFAULTS).cases
    assert DEFAULTS.on_device_of(contract.limits).device == device
    assert replace(DEFAULTS, device="cuda:1").on_device_of(contract.limits).device == "cuda:1"


def test_a_device_may_have_a_number() -> None:
    assert Plan.of(CONTRACT, replace(DEFAULTS, device="cpu:0")).cases
