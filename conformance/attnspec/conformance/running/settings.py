"""Settings of a run, declared once.

The options of ``attnspec check`` and of pytest, the attributes of a :class:`ConformanceSuite` and the arguments of
worker processes follow from this declaration. Every pytest run of every user imports it, so it imports nothing heavy.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from attnspec.spec.contract.limits import Limits

T = TypeVar("T")


def _setting(
    default: T, metavar: str, help_: str, *, option: str = "", cli_only: bool = False, internal: bool = False
) -> T:
    facts = {"metavar": metavar, "help": help_, "option": option, "cli_only": cli_only or internal}
    return field(default=default, metadata={**facts, "internal": internal})


@dataclass(frozen=True)
class Settings:
    """Selection and effort of a run. An empty selection selects everything.

    Only runs of the command ``attnspec`` set ``shared_folder``: it tells their processes from a user's pytest.
    """

    profile: str = _setting("quick", "P", "how much is tried: quick, full or release")
    seed: int = _setting(0, "N", "the seed of all examples; the same seed gives the same verdicts")
    device: str = _setting(
        "auto", "D", "the device to run on: auto (the only one that the backend declares), or its name"
    )
    operations: tuple[str, ...] = _setting((), "NAME", "only this operation; may be repeated", option="operation")
    laws: tuple[str, ...] = _setting(
        (), "ID", "only this law, or pattern such as 'masking.*'; may be repeated", option="law"
    )
    dtypes: tuple[str, ...] = _setting((), "D", "only this dtype; may be repeated", option="dtype")
    expect: str | None = _setting(
        None, "FILE", "file of expected failures, a line each: operation, law and dtype; the run fails if one passes"
    )
    in_process: bool = _setting(
        False, "", "judge in the backend's own process, for a debugger; the backend could falsify its verdict"
    )
    sandbox: str = _setting("auto", "S", "run the backend under bubblewrap: auto (where that works), on, or off")
    hang_after: float = _setting(20.0, "S", "seconds after which a check counts as hung", cli_only=True)
    fail_fast: bool = _setting(False, "", "stop at the first unexpected violation", cli_only=True)
    time_limit: float = _setting(
        0.0, "S", "seconds that the run may take, 0 for no limit; then it reports the verdicts so far", cli_only=True
    )
    accept_observed: bool = _setting(
        False, "", "conform, too, if only declarations are missing and the report has them", cli_only=True
    )
    shard: str | None = _setting(
        None, "I/N", "judge only the I-th of N parts of the run, to merge their reports", internal=True
    )
    declared: str | None = _setting(
        None,
        "ATTRIBUTES",
        "judge as if the backend declared these attributes, the text of a Python dictionary",
        internal=True,
    )
    only: str | None = _setting(
        None, "FILE", "only the laws that this file lists, in the format of --attn-expect", internal=True
    )
    shared_folder: str | None = _setting(
        None, "DIR", "folder that the processes of `attnspec check` share", internal=True
    )

    @classmethod
    def from_options(cls, value_of: Callable[[str], Any]) -> "Settings":
        """Return the settings of pytest's command line; ``value_of`` maps a flag to its value."""
        values: dict[str, Any] = {o.setting: value_of(o.flag) for o in OPTIONS}
        return cls(**values | {o.setting: tuple(values[o.setting]) for o in OPTIONS if o.repeatable})

    def on_device_of(self, limits: "Limits") -> "Settings":
        """Return the settings with the device that ``auto`` means for a backend."""
        return replace(self, device=limits.chosen_device(self.device))

    def arguments(self) -> list[str]:
        """Return the arguments that choose these settings on pytest's command line."""
        chosen = [(o, value) for o in OPTIONS for value in o.values(getattr(self, o.setting))]
        return [o.flag if o.switch else f"{o.flag}={value}" for o, value in chosen]


@dataclass(frozen=True)
class Option:
    """A setting as a command-line option.

    ``cli_only`` options are not attributes of a suite. ``internal`` ones are passed only by attnspec to its own
    processes, so that pytest's help does not name them.
    """

    setting: str
    name: str
    default: Any
    metavar: str
    help: str
    cli_only: bool
    internal: bool

    @property
    def flag(self) -> str:
        """Flag for pytest, where the options of all plugins share one namespace."""
        return f"--attn-{self.name}"

    @property
    def repeatable(self) -> bool:
        """Return whether the option may be repeated."""
        return isinstance(self.default, tuple)

    @property
    def switch(self) -> bool:
        """Return whether the option takes no value."""
        return isinstance(self.default, bool)

    @property
    def parse(self) -> Callable[[str], Any]:
        """Function that turns a command-line argument into a value."""
        return str if self.default is None or self.repeatable else type(self.default)

    def values(self, setting: Any) -> tuple[Any, ...]:
        """Return the option's values for a setting: several if repeatable, none if unset."""
        return tuple(setting) if self.repeatable else () if setting is None or setting is False else (setting,)


def _option(setting: "Field[Any]") -> Option:
    name, x = setting.name, setting.metadata
    facts = {key: x[key] for key in ("metavar", "help", "cli_only", "internal")}
    return Option(name, x["option"] or name.replace("_", "-"), setting.default, **facts)


OPTIONS = tuple(map(_option, fields(Settings)))
HELP = {o.setting: o.help for o in OPTIONS}
"""Help text of each setting."""
