"""The error that means a run cannot take place."""


class BackendError(Exception):
    """Unusable backend or selection; the one-line message says what was expected and what came."""
