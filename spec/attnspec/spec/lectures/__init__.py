"""The five lectures page by page: what each heading, formula, figure and table is owned by, or why by nothing."""

from collections.abc import Mapping

from attnspec.spec.lectures import s0, s1, s2, s3, s4
from attnspec.spec.lectures.registry import Lecture

LECTURES: Mapping[str, Lecture] = {x.LECTURE.source.key: x.LECTURE for x in (s0, s1, s2, s3, s4)}
"""Every lecture, by the key of its source."""
