"""Runs of the suite: settings, selection, worker processes, crashes and hangs, replays, and the kill matrix."""
