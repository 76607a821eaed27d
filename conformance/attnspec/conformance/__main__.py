"""``python -m attnspec.conformance``: the command ``attnspec``."""

from attnspec.conformance.cli import main

main()
