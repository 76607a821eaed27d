"""Entry point of ``python -m examples.adapters [NAME …]``, which prints a row per adapter.

Each is checked twice: as it is, and with the declaration that the first check proposes.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.adapters.twice import ADAPTERS, table_row, twice

if unknown := [name for name in sys.argv[1:] if name not in ADAPTERS]:
    sys.exit(f"examples.adapters: expected one of {', '.join(ADAPTERS)}; got {unknown[0]!r}")
for name in sys.argv[1:] or ADAPTERS:
    with TemporaryDirectory() as folder:
        print(table_row(name, twice(name, Path(folder))), flush=True)
