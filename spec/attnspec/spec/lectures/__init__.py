"""Pages of the five lectures: each heading, formula, figure and table has owners or a reason."""

from collections.abc import Mapping

from attnspec.spec.lectures import s0, s1, s2, s3, s4
from attnspec.spec.lectures.registry import Lecture

LECTURES: Mapping[str, Lecture] = {x.LECTURE.source.key: x.LECTURE for x in (s0, s1, s2, s3, s4)}
"""All lectures, by the key of their source."""
