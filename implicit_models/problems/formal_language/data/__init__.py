"""Strings of formal languages: how they are drawn, written and opened."""
