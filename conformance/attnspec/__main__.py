"""Entry point of ``python -m attnspec``, which runs the command ``attnspec``."""

import sys

from attnspec.conformance.running.extra import missing_packages
from attnspec.conformance.running.interruption import INTERRUPTION


def main() -> None:
    """Run the command; signals that arrive during its imports wait, so that ``check`` can report them."""
    INTERRUPTION.hold()
    if message := missing_packages():
        sys.stderr.write(f"attnspec: {message}\n")
        sys.exit(2)
    from attnspec.conformance.cli import main as command

    command()


if __name__ == "__main__":
    main()
