"""Machinery around the formulas: argument checks, semantic choices, and other arithmetics than NumPy's."""
