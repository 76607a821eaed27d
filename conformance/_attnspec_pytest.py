"""Entry point of the pytest plugin, ``attnspec.conformance.plugin``.

Without a module beside the namespace ``attnspec``, pytest takes the names inside of it for top-level modules. It would
then rewrite users' modules of these names, and warn in every run that it came too late to rewrite ``__main__``.
"""

from attnspec.conformance.plugin import *
