"""The error of a run that cannot take place."""


class BackendError(Exception):
    """A backend or a selection that cannot be used; the message says on one line what was expected and what was got."""
