"""A whole run: settings, worker processes, what becomes of crashes and hangs, the kill matrix."""
