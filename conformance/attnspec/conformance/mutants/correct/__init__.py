"""A complete right backend in plain NumPy, made of small pieces that can be replaced."""

from attnspec.conformance.mutants.correct.formulas import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import Library

__all__ = ["Formulas", "Library", "Numbers"]
