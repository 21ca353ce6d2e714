"""Readers of file formats; none of them runs code that it finds in a file."""
