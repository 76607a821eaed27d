"""The error that means a run cannot take place."""


class BackendError(Exception):
    """An unusable backend or selection; the message is one line: what was expected, what came."""
