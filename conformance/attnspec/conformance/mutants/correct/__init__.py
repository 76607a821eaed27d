"""A complete correct backend in NumPy, made of small steps that mutants and variants replace."""

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.formulas import Formulas
from attnspec.conformance.mutants.correct.library import Library

__all__ = ["Formulas", "Library", "Numbers"]
