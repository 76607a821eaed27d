"""What probes of semantics have seen: choices, and the ways to call that show them."""

from typing import NamedTuple

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.semantics import WAYS

NAMED = {phrase: way for way, phrase in WAYS.items()}
"""The names of the ways to encode a mask, by what sightings say."""

OTHER = "something else"
"""What is none of the known choices."""


class Sighting(NamedTuple):
    """A choice that was observed, the arguments that show it, and of what is no known choice what was seen.

    ``way`` says how a call that could be made in several ways was made.
    """

    choice: str
    arguments: Arguments
    shown: str = ""
    way: str = ""


Seen = list[Sighting]
"""The choices that were observed; empty if the arguments do not tell."""


def choice_by_way(seen: Seen) -> dict[str, str] | None:
    """The known choice that each way of masking shows; None where a way shows several."""
    found: dict[str, set[str]] = {way: set() for way in WAYS}
    for sighting in seen:
        if sighting.way not in NAMED or sighting.choice == OTHER:
            return None
        found[NAMED[sighting.way]].add(sighting.choice)
    if not found["full"] or any(len(choices) > 1 for choices in found.values()):
        return None
    return {way: choices.pop() for way, choices in found.items() if choices}


def said_by_way(seen: Seen) -> str:
    """Which ways show which choice, where there are several of both."""
    choices: dict[str, dict[str, None]] = {}
    for found in seen:
        choices.setdefault(found.choice, {})[found.way] = None
    if len(choices) < 2 or all(list(ways) == [""] for ways in choices.values()):
        return ""
    return f" ({', '.join(f'{choice} with ' + ' and '.join(ways) for choice, ways in choices.items())})"
