"""Readers of file formats; none of them runs code from a file."""
