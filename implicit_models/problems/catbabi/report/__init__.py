"""Its section of the report."""
