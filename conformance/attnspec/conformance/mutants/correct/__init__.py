"""A complete and correct backend in plain NumPy, made of small pieces that can be replaced one at a time."""

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.formulas import Formulas
from attnspec.conformance.mutants.correct.library import Library

__all__ = ["Formulas", "Library", "Numbers"]
