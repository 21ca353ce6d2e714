"""Where data files come from, and where they are looked for."""
