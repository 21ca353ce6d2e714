"""Every table, figure and text claim of the paper as data, run by `sweeps` and judged.

exhibits/NAME.toml  the question, the grid, its scales, its claims, its chart      (exhibit.py, load.py)
paper/NAME.json     the paper's numbers, and where it prints them
grid.py             combinations of the axes -> configs -> a plan of cells
run.py              `reproduce`: runs what is missing, returns an `ExhibitResult`
claims.py           the paper's claims, and whether they hold here
training.py         whether the runs were long enough to tell
printed.py          claims about printed numbers: by interval, by order
published.py, variants.py   others' models, partitions and attacks; SparseFed as others have it
document.py, exhibit_charts.py   the result for a reader
"""
