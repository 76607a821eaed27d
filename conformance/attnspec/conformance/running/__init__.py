"""Runs of the suite: settings, selection, worker processes, crashes and hangs, and the kill matrix."""
