"""Runs of the suite, in worker processes or in pytest, and trials of mutants."""
