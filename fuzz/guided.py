"""Fuzzing guided by coverage: atheris keeps what reaches new lines of the readers; for groups with a dict FORMS.

It needs `pip install atheris`, which has wheels for some versions of Python only, and starts from the good files and
the kept ones. A finding is written to fuzz/found/, from where it goes to fuzz/corpus/<format>/ once it is understood.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz import driver

FOUND = Path(__file__).with_name("found")


def run(group: str, seed: int, seconds: float) -> int:
    """Give every format its share of the time, each in a process of its own; return 1 if anything was found."""
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed here; `pip install atheris`, or leave out --guided")
        return 2
    names = list(importlib.import_module(driver.GROUPS[group]).FORMS)
    each, failed = str(max(1, round(seconds / len(names)))), 0
    for name in names:
        print(f"--- {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", "fuzz.guided", group, name, str(seed), each]).returncode != 0
    return 1 if failed else 0


def main(group: str, name: str, seed: str, seconds: str) -> None:
    """Fuzz one format in this process until the time is over or something is found."""
    import atheris

    importlib.import_module("sparsefed.kernels.vector_kernels")  # before: numba cannot compile what atheris has changed
    with atheris.instrument_imports(include=["sparsefed.data"]):
        module: Any = importlib.import_module(driver.GROUPS[group])
    form = module.FORMS[name]

    def one(raw: bytes) -> None:
        outcome = driver.judged(driver.Case(0, name, "guided", lambda: form.read(raw)))
        if outcome.verdict == "failed":
            raise AssertionError(outcome.detail)

    with tempfile.TemporaryDirectory() as folder:
        good = Path(folder) / "good"
        good.write_bytes(form.pack(form.parts))
        FOUND.mkdir(exist_ok=True)
        limits = [f"-seed={seed}", f"-max_total_time={seconds}", "-rss_limit_mb=4096", "-timeout=20", "-max_len=65536"]
        kept = [str(path) for path in [module.CORPUS / name] if path.is_dir()]
        prefix = f"-artifact_prefix={FOUND}/{name.replace(' ', '-')}-"
        atheris.Setup([name, *limits, prefix, "-verbosity=0", "-print_final_stats=1", folder, *kept], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
