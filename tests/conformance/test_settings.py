"""Settings are declared once; options, suites, schema and documentation agree with them."""

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from attnspec.conformance import ConformanceSuite, plugin
from attnspec.conformance.cli import app
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.environment import ONE_THREAD, environment
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.running.checking import pytest_arguments
from attnspec.conformance.running.settings import OPTIONS, Option, Settings
from attnspec.conformance.running.suite import settings_of_suite
from attnspec.conformance.running.trial_run import SECONDS

from .test_report import SCHEMA

CHOSEN = Settings(
    profile="full",
    seed=7,
    device="cuda:1",
    operations=("softmax", "dot_scores"),
    laws=("operation.oracle",),
    dtypes=("float32",),
    expect="known.txt",
    in_process=True,
    hang_after=2.5,
    fail_fast=True,
    time_limit=90.0,
    accept_observed=True,
    shard="2/3",
    declared='{"semantics": {}}',
    only="only.txt",
    shared_folder="somewhere/else",
)
"""Settings none of which is the default."""

COMMANDS: Any = typer.main.get_command(app)
COMMAND = {p.name: p for p in COMMANDS.commands["check"].params}


class PytestOptions(argparse.ArgumentParser):
    """The parser to which the plugin adds its options."""

    def getgroup(self, name: str, description: str) -> "PytestOptions":
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        self.add_argument(*names, **attributes)


def parsed(*arguments: str) -> Settings:
    parser: Any = PytestOptions()
    plugin.pytest_addoption(parser)
    options = vars(parser.parse_args(arguments))
    return Settings.from_options(lambda flag: options[flag.removeprefix("--").replace("-", "_")])


@pytest.mark.parametrize("settings", [Settings(), CHOSEN], ids=["defaults", "chosen"])
def test_pytest_reads_the_settings_back_from_their_arguments(settings: Settings) -> None:
    assert parsed(*settings.arguments()) == settings


def test_workers_get_every_setting(tmp_path: Path) -> None:
    arguments = pytest_arguments("mine.py", CHOSEN, tmp_path, 3)
    settings = [a for a in arguments if a.startswith("--attn-") and not a.startswith("--attn-backend")]
    assert parsed(*settings) == Settings(**{**vars(CHOSEN), "shared_folder": str(tmp_path)})
    assert "--attn-backend=mine.py" in arguments


def test_without_arguments_settings_are_the_defaults(pytestconfig: pytest.Config) -> None:
    assert parsed() == Settings()
    assert plugin.settings_of_options(pytestconfig) == Settings()


@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if o.setting not in ("shared_folder", "only", "declared")], ids=lambda o: o.name
)
def test_the_command_has_every_option(option: Option) -> None:
    parameter = COMMAND[option.name.replace("-", "_")]
    assert parameter.opts == [f"--{option.name}"]
    assert parameter.help.startswith(option.help)
    assert parameter.multiple == option.repeatable
    if option.setting == "in_process":  # without the option, the backend decides
        assert (parameter.default, parameter.secondary_opts) == (None, ["--isolated"])
    else:
        assert (parameter.default or ()) == option.default if option.repeatable else parameter.default == option.default


def test_the_command_has_no_other_settings() -> None:
    settings = {o.name.replace("-", "_") for o in OPTIONS}
    assert settings - COMMAND.keys() == {"shared_folder", "only", "declared"}
    assert COMMAND.keys() - settings == {"backend", "command", "workers", "json", "html", "junit"}
    profile = next(p for p in COMMANDS.commands["mutants"].params if p.name == "profile")
    assert (profile.default, profile.help) == (COMMAND["profile"].default, COMMAND["profile"].help)


def test_a_suite_has_the_settings_as_attributes() -> None:
    attributes = {o.setting: o.default for o in OPTIONS if not o.cli_only}
    assert {name: getattr(ConformanceSuite, name) for name in attributes} == attributes
    assert set(ConformanceSuite.__annotations__) == {"backend", *attributes}
    assert {f.name for f in fields(Settings)} - set(attributes) == {
        "hang_after",
        "fail_fast",
        "time_limit",
        "accept_observed",
        "shard",
        "declared",
        "only",
        "shared_folder",
    }


def test_attributes_of_a_suite_become_settings() -> None:
    chosen = {o.setting: getattr(CHOSEN, o.setting) for o in OPTIONS if not o.cli_only}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}
    assert settings_of_suite(type("Mine", (ConformanceSuite,), lists)) == Settings(**chosen)
    assert settings_of_suite(type("Mine", (ConformanceSuite,), {})) == Settings()
    with pytest.raises(BackendError, match=r"Mine\.laws: expected a tuple of names; got 'operation\.oracle'"):
        settings_of_suite(type("Mine", (ConformanceSuite,), {"laws": "operation.oracle"}))


def test_profiles_have_the_same_names_everywhere() -> None:
    assert COMMAND["profile"].help.endswith(": {}, {} or {}".format(*PROFILES))
    assert Settings.profile in PROFILES
    assert list(SCHEMA["properties"]["profile"]["enum"]) == list(PROFILES) == list(SECONDS)


def test_the_schema_has_the_fields_of_a_verdict() -> None:
    described = SCHEMA["properties"]["results"]["items"]
    assert (
        described["required"]
        == list(described["properties"])
        == [*(f.name for f in fields(Result)), "expected", "explained_by"]
    )
    assert described["properties"]["status"]["enum"] == list(Status)


def test_the_page_on_ci_names_every_attribute_of_a_suite() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    table = page.partition("| attribute |")[2].partition("\n\n")[0]
    assert [o.setting for o in OPTIONS if not o.cli_only and f"`{o.setting}`" not in table] == []


def test_environment_variables_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with environment({**ONE_THREAD, "PYTEST_ADDOPTS": None, "ATTNSPEC_NO_SUCH": None}):
        assert {os.environ[name] for name in ONE_THREAD} == {"1"}
        assert "PYTEST_ADDOPTS" not in os.environ
    assert dict(os.environ) == before
