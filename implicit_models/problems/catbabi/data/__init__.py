"""How it is written, opened and verified."""
