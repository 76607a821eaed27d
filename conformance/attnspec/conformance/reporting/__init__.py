"""Reports, tables, and the kill matrix of a run; and the printed specification."""
