# SPDX-License-Identifier: Apache-2.0
"""The walls: who may import whom and through which door, torch, secrets, kernels, printing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "heatfhe"
FILES = sorted(SOURCE.rglob("*.py"))

# Floors, from the ground up. A room imports from floors below; beside it only where BESIDE says so.
FLOORS: dict[str, int] = {
    **dict.fromkeys(
        ("approx", "records", "errors", "files", "progress", "assets", "doors", "stages", "odd", "images"), 0
    ),
    **dict.fromkeys(("halting", "models", "sites"), 1),
    **dict.fromkeys(("ranges", "circuit", "ckks"), 2),
    **dict.fromkeys(("training", "lowering", "planning"), 3),
    **dict.fromkeys(("engine", "wire"), 4),
    **dict.fromkeys(("report", "search", "evaluation", "client", "server"), 5),
    "cli": 6,
}
BESIDE = {
    ("approx", "errors"),
    ("assets", "errors"),
    ("files", "errors"),
    ("odd", "errors"),
    ("odd", "progress"),
    ("images", "errors"),
    ("records", "approx"),
    ("records", "errors"),
    ("records", "files"),
    ("sites", "halting"),
    ("sites", "models"),
    ("stages", "errors"),
    ("stages", "records"),
}
TORCH_FREE = (
    "approx",
    "records",
    "errors",
    "files",
    "progress",
    "assets",
    "doors",
    "stages",
    "odd",
    "images",
    "models",
) + (
    "circuit",
    "planning",
    "ckks",
    "engine",
    "wire",
    "client",
    "server",
)
ONLY_IN = {
    "numba": ("ckks/kernels/cpu",),
    "cupy": ("ckks/kernels/cuda",),
    "openfhe": ("engine/openfhe", "client/keyring_openfhe"),
    "lm_eval": ("evaluation/tasks", "cli/lm_eval"),
    "pymoo": ("search/nsga",),
    "scipy": (),
    "ray": ("server/work/ray_seat.py", "server/work/ray_desk.py", "evaluation/ray_tasks.py"),
    "fsspec": ("server/store/remote_objects.py",),
}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, int]]:
    """Modules imported anywhere in a file, except under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {id(child) for part in node.body for child in ast.walk(part)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.module, node.lineno))
            if node.module == "heatfhe":
                found += [(f"heatfhe.{alias.name}", node.lineno) for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    own = room(path)
    if own in ("__init__", "__main__"):
        return
    assert own in FLOORS, f"{own}: a room without a floor"
    for module, line in imports(path):
        parts = module.split(".")
        if parts[0] != "heatfhe" or len(parts) < 2 or parts[1] == own or parts[1].startswith("__"):
            continue
        target = parts[1]
        below = FLOORS[target] < FLOORS[own]
        assert below or (own, target) in BESIDE, (
            f"{path.relative_to(SOURCE)}:{line} imports {module} from its own floor or above"
        )


def is_door(module: str) -> bool:
    """Whether others may import a module: a room, or a sub-package of one, speaks through its ``__init__``."""
    parts = module.split(".")[1:]
    return len(parts) == 1 or (SOURCE.joinpath(*parts) / "__init__.py").is_file()


def exports(package: Path) -> set[str]:
    """Names a package's ``__init__`` gives out under ``__all__``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((package / "__init__.py").read_text())):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            found |= set(ast.literal_eval(node.value))
    return found


def past_doors(path: Path, text: str) -> list[str]:
    """Imports of a file, types included, that name a module inside another room or take one from its door."""
    found = []
    for node in ast.walk(ast.parse(text)):
        where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            taken = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            taken = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        modules = set()
        for module, name in taken:
            if not module.startswith("heatfhe.") or module.split(".")[1] == room(path):
                continue
            folder = SOURCE.joinpath(*module.split(".")[1:])
            inside = is_door(module) and (folder / f"{name}.py").is_file() and name not in exports(folder)
            if inside or not is_door(module):
                modules.add(f"{module}.{name}" if inside else module)
        found += [f"{where} imports {module}" for module in sorted(modules)]
    return found


def test_rooms_are_entered_through_their_doors() -> None:
    found = [line for path in FILES for line in past_doors(path, path.read_text())]
    assert not found, f"import what the room's __init__ exports: {found}"


def test_what_counts_as_past_a_door() -> None:
    lines = {
        "import heatfhe.ckks.params": 1,
        "from heatfhe.ckks.params import Params": 1,
        "from heatfhe.circuit import store": 1,
        "from heatfhe.planning.pack.layout import Packing": 1,
        "from heatfhe.ckks.keys import GALOIS, RELINEARISE": 1,
        "if TYPE_CHECKING:\n    from heatfhe.ckks.ring import Ring": 1,
        "def late() -> None:\n    from heatfhe.engine.clear import ClearEngine": 1,
        "from heatfhe.ckks.kernels import Words": 0,
        "from heatfhe.ckks.secret import KeyMaker": 0,
        "from heatfhe.planning import Plan, plan": 0,
        "from heatfhe.errors import HeatError": 0,
        "from heatfhe.wire.frame import Message": 0,  # its own room
        "import numpy.linalg": 0,
    }
    path = SOURCE / "wire" / "imagined.py"
    for line, count in lines.items():
        assert len(past_doors(path, line)) == count, line


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in TORCH_FREE], ids=lambda p: str(p.relative_to(SOURCE)))
def test_torch_stays_on_its_side(path: Path) -> None:
    for module, line in imports(path):
        assert module.split(".")[0] not in ("torch", "transformers", "accelerate"), (
            f"{path.name}:{line} imports {module}"
        )


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_kernel_library_is_imported_in_one_place_at_most(library: str) -> None:
    for path in FILES:
        where = str(path.relative_to(SOURCE))
        if any(module.split(".")[0] == library for module, _ in imports(path)):
            assert where.startswith(ONLY_IN[library]), f"{where} imports {library}"


def test_only_the_client_knows_secrets() -> None:
    for path in FILES:
        where = str(path.relative_to(SOURCE))
        for module, line in imports(path):
            if module.startswith("heatfhe.ckks.secret"):
                assert where.startswith(("ckks/secret", "client/")), f"{where}:{line} imports {module}"
            if module.startswith("heatfhe.client"):
                assert room(path) not in ("server", "wire", "engine", "planning", "ckks", "circuit"), f"{where}:{line}"


def test_only_its_own_file_knows_the_names_of_an_architecture() -> None:
    """Everybody else dispatches on stages: a module's name in a string is a door closed to the next architecture."""
    names = ("c_attn", "c_fc", "c_proj", "attn_dropout", "resid_dropout", "wte", "wpe", "ln_1", "ln_2", "ln_f")
    for path in FILES:
        if room(path) == "models":
            continue
        tree = ast.parse(path.read_text())
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                assert not any(name in node.value for name in names), where
            assert not (isinstance(node, ast.Attribute) and node.attr in names), where


def test_only_the_cli_prints() -> None:
    for path in FILES:
        if room(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not printing, f"{path.relative_to(SOURCE)}:{node.lineno} prints"


def test_nobody_pickles() -> None:
    for path in FILES:
        assert not any(
            m.split(".")[0] in ("pickle", "cPickle", "dill", "shelve", "marshal") for m, _ in imports(path)
        ), path


def test_a_server_process_holds_no_client_code() -> None:
    pytest.importorskip("fastapi")
    code = (
        "import sys, heatfhe.server; "
        "bad = [m for m in sys.modules if m.startswith(('heatfhe.client', 'heatfhe.ckks.secret'))]; "
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_error_is_raised_somewhere() -> None:
    """An error nobody raises promises a check that does not exist."""
    tree = ast.parse((SOURCE / "errors.py").read_text())
    classes = {node.name: [ast.unparse(b) for b in node.bases] for node in tree.body if isinstance(node, ast.ClassDef)}
    parents = {base for bases in classes.values() for base in bases}
    raised = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                raised.add(node.func.id)
    assert not set(classes) - parents - raised


def test_every_room_exists() -> None:
    rooms = {room(path) for path in FILES} - {"__init__", "__main__"}
    assert set(FLOORS) == rooms
    assert {name for pair in BESIDE for name in pair} <= rooms


def test_files_stay_readable() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := len(p.read_text().splitlines())) > 450}
    assert not long, f"files past 450 lines: {long}"


def test_every_file_opens_with_licence_and_purpose() -> None:
    for path in FILES:
        text = path.read_text()
        if not text.strip():
            continue
        assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), path
        assert ast.get_docstring(ast.parse(text)), f"{path}: no sentence of purpose"
