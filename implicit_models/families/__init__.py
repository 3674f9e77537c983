"""Families of models: a folder each, with all that is known of it (docs/models.md)."""
