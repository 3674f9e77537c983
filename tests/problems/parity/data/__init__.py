"""The data of parities."""
