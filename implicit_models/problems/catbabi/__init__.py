"""CatbAbI: bAbI's twenty tasks as streams of words."""
