"""The data sets, one a file."""
