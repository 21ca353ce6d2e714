"""The files of a Flower app that runs a config: `flwr run FOLDER` takes them as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsefed import runs
from sparsefed.core import toml

PACKAGE = "sparsefed_app"

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A SparseFed config as a Flower app"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "sparsefed"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
folder = "{folder}"
{more}"""

SERVER = '''\
"""The server of the federation that config.toml describes."""

from pathlib import Path

from sparsefed.flower import server_app

app = server_app(Path(__file__).parent / "config.toml"{settings})
'''

CLIENT = '''\
"""A client of the federation that config.toml describes."""

from pathlib import Path

from sparsefed.flower import client_app{imports}

app = client_app(Path(__file__).parent / "config.toml"{settings})
'''


def write_app(
    folder: Path,
    table: Mapping[str, Any],
    *,
    run_folder: str = "",
    settings: Mapping[str, Any] | None = None,
    rehearsal: bool = False,
    name: str = "sparsefed-app",
) -> list[Path]:
    """Write a Flower app for a config and return the paths of its files.

    Args:
        folder: where to write it; created if missing.
        table: the config, as `config.dump` writes it.
        run_folder: the default run folder of the server; `flwr run --run-config 'folder="..."'` sets another.
        settings: further arguments of `Strategy`, whose values Python can print and read back.
        rehearsal: let nodes break their replies where their node config asks for it.
        name: the name of the app.
    """
    helper = 'helper = ""\nhelper-key = ""\n' if table.get("secure") else ""
    given = {**(settings or {}), **({"red_team": True} if rehearsal else {})}
    server = "".join(f", {key}={value!r}" for key, value in given.items())
    imports, mods = (", fault", ", mods=[fault()]") if rehearsal else ("", "")
    return runs.write_all(
        {
            folder / "pyproject.toml": PROJECT.format(name=name, package=PACKAGE, folder=run_folder, more=helper),
            folder / PACKAGE / "__init__.py": '"""A SparseFed config as a Flower app."""\n',
            folder / PACKAGE / "config.toml": toml.dumps(table),
            folder / PACKAGE / "server.py": SERVER.format(settings=server),
            folder / PACKAGE / "client.py": CLIENT.format(imports=imports, settings=mods),
        }
    )
