"""Runs of the suite: settings, selection, workers, crashes and hangs, messages, replays, and trials of mutants."""
