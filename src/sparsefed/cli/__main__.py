"""The entry point of `python -m sparsefed.cli`."""

from sparsefed.cli import main

main()
