"""Reports of a run, as tables, pages and files; the kill matrix; the printed specification."""
