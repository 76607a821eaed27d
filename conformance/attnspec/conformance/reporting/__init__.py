"""What people and programs read of a run: reports, tables, messages; and the printed specification."""
