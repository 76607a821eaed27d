"""``python -m attnspec.conformance`` is the command ``attnspec``."""

from attnspec.conformance.cli import main

if __name__ == "__main__":
    main()
