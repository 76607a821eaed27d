"""Runs of the suite: settings, selection, worker processes, crashes and hangs, messages, replays, and trials."""
