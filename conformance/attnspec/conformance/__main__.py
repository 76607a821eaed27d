"""``python -m attnspec.conformance`` is the command ``attnspec``."""

from attnspec.conformance.running.interruption import INTERRUPTION


def main() -> None:
    """Run the command. Signals wait while it is imported, so that ``check`` can report them."""
    INTERRUPTION.hold()
    from attnspec.conformance.cli import main as command

    command()


if __name__ == "__main__":
    main()
