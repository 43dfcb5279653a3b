# SPDX-License-Identifier: Apache-2.0
"""What a package index, a code host and docker read: extras, citation, templates, workflows, images."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import heatfhe

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development environment")
ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()


def extra(name: str) -> set[str]:
    """Packages of an extra, by name."""
    found = re.search(rf"^{name} = \[(.*?)\]$", PROJECT, flags=re.M)
    assert found is not None, name
    return {re.split(r"[><=\[]", part.strip('" '))[0] for part in found.group(1).split(", ")}


def test_extras_are_what_the_command_line_names() -> None:
    from heatfhe.cli import EXTRAS

    for package, name in EXTRAS.items():
        assert package in extra(name), f"heatfhe[{name}] does not bring {package}"
    assert re.search(r'^all = \["heatfhe\[train,native,serve,report\]"\]$', PROJECT, flags=re.M)
    assert extra("client") == extra("native") | extra("serve")  # every client's command, heat proxy too; no torch


def test_the_citation_is_of_this_version() -> None:
    body = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert body["version"] == heatfhe.__version__
    assert {"cff-version", "title", "message", "authors", "license"} <= set(body)


def test_templates_name_targets_and_commands_that_exist() -> None:
    from heatfhe.cli import GROUPS

    pages = [*(ROOT / ".github").rglob("*.md")]
    assert len(pages) == 3
    known = {name for group in GROUPS.values() for name in group}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in pages:
        assert set(re.findall(r"`heat ([a-z-]+)", page.read_text())) <= known
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("page", WORKFLOWS, ids=lambda p: p.stem)
def test_workflows_run_targets_and_scripts_alone(page: Path) -> None:
    """Every ``run:`` is one word a person can type here too, so that green means the same there; actions are pinned."""
    body = yaml.safe_load(page.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    ran = []
    for name, job in body["jobs"].items():
        assert "permissions" in job or body["permissions"] == {"contents": "read"}, name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), f"{name}: {step}"
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]), step["uses"]
                continue
            words = step["run"].split()
            ran.append(step["run"])
            if words[0] == "make":
                assert len(words) == 2, f"{name}: one target a step"
                assert words[1] in targets, f"{name} runs {step['run']}, no target of the Makefile"
            else:
                assert (ROOT / words[0]).is_file(), f"{name} runs {words[0]}, which is not here"
                assert (ROOT / words[0]).stat().st_mode & 0o100, f"{words[0]} cannot be run"
        for needed in [job.get("needs", [])]:
            assert set([needed] if isinstance(needed, str) else needed) <= set(body["jobs"])
    assert {"make check", "make test", "make package"} <= set(ran)


def test_there_is_a_workflow_to_test_and_one_to_release() -> None:
    assert [p.stem for p in WORKFLOWS] == ["release", "test"]
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the word "on" as true
    first = release["jobs"]["build"]["steps"]
    assert [s.get("env") for s in first if s.get("run") == "make package"] == [{"VERSION": "${{ github.ref_name }}"}]
    assert "$(VERSION)" in (ROOT / "Makefile").read_text()
    assert "secrets." not in str(release["jobs"]["publish"])  # PyPI trusts the workflow, no password is kept


def images() -> Any:
    found = importlib.util.spec_from_file_location("image_steps", ROOT / "scripts" / "image.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["image_steps"] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def test_the_images_have_a_user_and_nothing_of_the_build() -> None:
    stages, arguments = images().read_stages((ROOT / "Dockerfile").read_text())
    assert arguments == {"PYTHON": "3.11"}
    assert list(stages) == ["wheel", "server-packages", "client-packages", "server", "client"]
    for name in ("server", "client"):
        steps = stages[name].steps
        copied = [rest for word, rest in steps if word == "COPY"]
        assert copied == [f"--from={name}-packages /opt/heatfhe /opt/heatfhe"]
        assert ("USER", "10001:10001") in steps
        last = dict(steps)
        assert last["ENTRYPOINT"] == '["heat"]'
        after = [word for word, _ in steps][[word for word, _ in steps].index("USER") :]
        assert "RUN" not in after
    extras = set(re.findall(r"\[([a-z,]+)\]\"", (ROOT / "Dockerfile").read_text()))
    assert extras == {"client"}  # the server's are an argument
    assert ("ARG", "EXTRAS=native,serve") in stages["server-packages"].steps
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wanted = {w for word, rest in stages["wheel"].steps if word == "COPY" for w in rest.split()[:-1]}
    assert kept == wanted
    assert all((ROOT / name).exists() for name in wanted)


def test_composed_services_are_commands_that_exist_and_keep_keys_apart() -> None:
    from heatfhe.cli import _command

    body = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = body["services"]
    stages, _ = images().read_stages((ROOT / "Dockerfile").read_text())
    clients = [name for name, s in services.items() if s["build"]["target"] == "client"]
    assert clients == ["alice", "bob"]
    mounted: dict[str, set[str]] = {}
    for name, service in services.items():
        assert service["build"]["target"] in stages
        assert service["cap_drop"] == ["ALL"]
        command, *words = map(str, service["command"])
        words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", w) for w in words]
        _command(command, import_module(f"heatfhe.cli.{command}")).parse_args(words)
        mounted[name] = {line.split(":")[0] for line in service["volumes"]}
        assert mounted[name] <= set(body["volumes"])
        assert set(service.get("depends_on", {})) <= set(services)
    for name in clients:
        assert f"{name}-keys" in mounted[name]
        assert all(f"{name}-keys" not in of for other, of in mounted.items() if other != name)
        assert "server-data" not in mounted[name]
        assert all(f"{name}-inbox" not in of for other, of in mounted.items() if other not in (name, f"{name}-token"))


def test_a_release_of_another_version_is_refused() -> None:
    done = subprocess.run([ROOT / "scripts" / "package", "v9.9"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"asked for v9.9, the package is {heatfhe.__version__}" in done.stderr
