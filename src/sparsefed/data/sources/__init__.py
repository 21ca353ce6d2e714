"""The sources of data files, and the folders in which they are looked for."""
