"""Entry point of ``python -m examples.adapters [NAME …]``: prints a table row per adapter, by default for all."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.adapters.twice import ADAPTERS, line, twice

if unknown := [name for name in sys.argv[1:] if name not in ADAPTERS]:
    sys.exit(f"examples.adapters: expected one of {', '.join(ADAPTERS)}; got {unknown[0]!r}")
for name in sys.argv[1:] or ADAPTERS:
    with TemporaryDirectory() as folder:
        print(line(name, twice(name, Path(folder))), flush=True)
