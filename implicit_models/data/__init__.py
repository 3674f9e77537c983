"""Data sets: what models are trained and evaluated on."""
