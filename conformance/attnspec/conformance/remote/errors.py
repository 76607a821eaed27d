"""The errors that mean that a run cannot take place."""


class BackendError(Exception):
    """An unusable backend or selection; the message is one line: what was expected, what came."""


class RedeclaredError(BackendError):
    """A backend that declares something else when it is started again: its run cannot be used."""
