"""What people and programs read of a run: reports, tables, the kill matrix; and the printed specification."""
