"""The shape of the code: what import-linter checks must hold for every module there is."""

from __future__ import annotations

import re
import tomllib

from tests.house.commands import ROOT

# Django's own file, and the agent, which has a contract of its own.
OUTSIDE_THE_LAYERS = {"mesh.apps", "mesh.agent"}


def layered() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    return {name for layer in contract["layers"] for name in re.findall(r"[\w.]+", layer)}


def test_every_module_of_the_mesh_has_its_layer() -> None:
    modules = {
        f"mesh.{path.stem}"
        for path in (ROOT / "mesh").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"mesh.__init__", "mesh.migrations"}
    assert sorted(modules - layered() - OUTSIDE_THE_LAYERS) == []


def test_no_layer_is_left_of_a_module_that_went() -> None:
    gone = [
        name
        for name in layered() - {"config"}
        if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
        and not (ROOT / name.replace(".", "/") / "__init__.py").exists()
    ]
    assert gone == []
