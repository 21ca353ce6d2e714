"""Imports point one way only: the layout is the architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sparsefed

ROOT = Path(sparsefed.__file__).parent

LAYERS = (
    ("core", "kernels"),  # `core.round` reads blocks of rows; everything else in `kernels` stands above `core.types`
    ("defenses", "attacks", "data", "models", "engines", "theory", "schedules", "trust", "secure"),
    ("config", "runs", "trackers", "server"),
    ("cluster",),
    ("simulation",),
    ("results",),
    ("reports",),
    ("flower", "nvflare"),
    ("sweeps",),
    ("commands",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
APART = {("defenses", "attacks"), ("attacks", "defenses"), ("models", "data"), ("data", "models")}
TOP = "__init__"


def part(module: str) -> str:
    """'sparsefed.engines.fused' -> 'engines'."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else TOP


def imports() -> Iterator[tuple[Path, str, str]]:
    """Every (file, its part, the part it imports) within the project."""
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        own = relative.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sparsefed":
                names = [f"sparsefed.{a.name}" for a in node.names] if node.module == "sparsefed" else [node.module]
            elif isinstance(node, ast.Import):
                names = [a.name for a in node.names if a.name.split(".")[0] == "sparsefed"]
            else:
                continue
            for name in names:
                yield path, own, part(name)


def test_every_part_has_a_layer() -> None:
    parts = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__pycache__", "__init__"} - {"py.typed"} == set(LEVEL)


def test_imports_point_one_way() -> None:
    seen = 0
    for path, own, other in imports():
        if own in (TOP, other) or other in (TOP, "__version__"):
            continue
        seen += 1
        assert LEVEL[other] <= LEVEL[own], f"{path} imports {other}, which stands above {own}"
        assert (own, other) not in APART, f"{path}: {own} and {other} do not know each other"
    assert seen > 50  # the walk did find the project


def test_nobody_loads_code_from_data_or_seeds_the_world() -> None:
    forbidden = ("allow_pickle", "torch.load(", "np.random.seed(", "torch.manual_seed(", "eval(", "exec(")
    loaders = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    for path in ROOT.rglob("*.py"):
        text = path.read_text().replace(".eval()", "")
        assert not any(word in text for word in forbidden), path
        for node in ast.walk(ast.parse(text)):
            named = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            named += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not loaders & {name.split(".")[0] for name in named}, path
