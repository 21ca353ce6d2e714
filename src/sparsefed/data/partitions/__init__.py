"""Who owns which examples."""
