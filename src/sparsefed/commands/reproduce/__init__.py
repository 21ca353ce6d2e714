"""Every table, figure and text claim of the paper as data, run by `sweeps` and judged.

exhibits/NAME.toml  the question, the grid, its scales, its claims, its chart      (exhibit.py, load.py)
paper/NAME.json     the paper's numbers, and where they stand
grid.py             combinations of the axes -> configs -> a plan of cells
run.py              `reproduce`: runs what is missing, returns an `ExhibitResult`
claims.py           what the paper says, and whether it holds here
comparison.py, exhibit_charts.py, document.py, view.py   for a reader
"""
