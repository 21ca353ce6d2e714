"""What an audit leaves beside its runs: a page, numbers for programs, and a config that `sparsefed run` takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sparsefed import config as configs
from sparsefed.commands.audit.document import html
from sparsefed.commands.audit.findings import AuditResult, recommended
from sparsefed.commands.audit.text import verdict
from sparsefed.commands.audit.to_json import as_json
from sparsefed.core import toml
from sparsefed.reports.pictures import write
from sparsefed.sweeps import ledger as results

PAGE, NUMBERS, CONFIG = "audit.html", "audit.json", "recommended.toml"


def save(outcome: AuditResult, out: Path) -> list[Path]:
    """Write all of it and say where."""
    config = recommended(outcome)
    numbers = json.dumps(as_json(outcome), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    texts = {PAGE: html(outcome, _command()), NUMBERS: numbers}
    if config is not None:
        said = "\n".join(f"# {sentence}" for sentence in verdict(outcome))
        texts[CONFIG] = f"{said}\n{toml.dumps(configs.dump(config))}"
    with results.disk(out):
        return [write(out / name, text.encode()) for name, text in texts.items()]


def _command() -> list[str]:
    return ["sparsefed", *sys.argv[1:]]
