# SPDX-License-Identifier: Apache-2.0
"""A private inference card says what files and servers say, and no more; what nobody measured is named as such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heatfhe.cli import main
from heatfhe.errors import ConfigError
from heatfhe.planning import Plan, cost_table, key_bytes, tally
from heatfhe.report import Material, circuit_card, gather, server_card
from tests.server.serving import joined, save_model, served_circuit

SECTIONS = (
    "subject", "encrypted", "in_the_clear", "leaks", "leaks_only_where_asked_for", "not_covered", "parameters", "noise",
    "quality", "cost",
)  # fmt: skip


def test_the_card_of_a_circuit_is_its_own_figures(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    made, table = Plan.load(source.plan), cost_table("native-cpu-11")
    body = circuit_card(served_circuit(), made, table).as_json()
    assert tuple(body)[2:] == SECTIONS
    assert body["subject"]["plan digest"] == made.digest
    assert body["parameters"]["security bits"] == made.params.security_bits == 0
    assert "NO SECURITY" in body["parameters"]["security"]
    rows = tally(made, "generate", table).values()
    assert body["cost"]["one generate step"]["bootstraps"] == sum(t.bootstraps for t in rows)
    assert body["noise"]["bootstraps per token"] == len(made.program("generate").bootstraps())
    assert body["cost"]["evaluation keys, bytes"] == key_bytes(made)
    assert body["quality"]["iterations per token"]["all"] == sum(served_circuit().calibration.iterations().values())
    for name in ("under encryption or simulated", "under noise at every bootstrap", "odd windows that diverged"):
        assert body["quality"][name].startswith("not measured")


def test_evaluations_of_others_are_left_out(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    made, table = Plan.load(source.plan), cost_table("native-cpu-11")
    fidelity = {"top1": 0.75, "kl": 1e-3, "collapsed": 1, "windows": 8}
    row = {"engine": "native", "params": "x", "positions": 6, "fidelity": fidelity, "seconds": 2.5}
    drift = {"sigma": 1e-5, "fidelity": fidelity}
    found = Material(
        evaluations=[{"name": made.name, **row}, {"name": "another", **row}],
        drifts=[{"name": "another", **drift}],
    )
    quality = circuit_card(served_circuit(), made, table, found).as_json()["quality"]
    (one,) = quality["under encryption or simulated"]
    assert (one["top token as in the clear"], one["seconds per token, measured"]) == (0.75, 2.5)
    assert quality["under noise at every bootstrap"].startswith("not measured")
    stressed = replace(served_circuit(), notes={"stress": {"random": {"diverged": 2, "windows": 8}}})
    told = circuit_card(stressed, made, table, found).as_markdown()
    assert "| odd windows that diverged: random | 2 of 8 |" in told
    assert "| under encryption or simulated: KL, nats | 0.001 |" in told


def test_a_training_run_of_another_circuit_is_refused(tmp_path: Path) -> None:
    from heatfhe.assets import default_circuit

    source = save_model(tmp_path / "model")
    found = gather([default_circuit("heat")])
    assert found.trainings
    with pytest.raises(ConfigError, match="made another circuit"):
        circuit_card(served_circuit(), Plan.load(source.plan), cost_table("native-cpu-11"), found)


def test_the_card_of_a_server_holds_what_it_announces_and_what_a_client_says(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    with joined(source, tmp_path) as there, there.client() as client:
        config = client.config
    body = server_card(config, address="https://fhe.example", verdict="it would not").as_json()
    assert tuple(body)[2:] == SECTIONS
    assert body["subject"]["configuration"] == config.config_id
    assert body["encrypted"] == {"everything": "IN THE CLEAR: this server only simulates"}
    assert body["cost"]["evaluation keys, bytes"] == config.price.key_bytes
    real = server_card(replace(config, engine="native"), address="a", verdict="b").as_json()
    assert "ciphertexts" in real["encrypted"]["prompt"]
    only = server_card(replace(config, programs=("generate", "prompt")), address="a", verdict="b").as_json()
    assert only["leaks"]["mode"].startswith("none")


def test_heat_card_prints_writes_and_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_model(tmp_path / "model")
    circuit, plan = str(source.circuit), str(source.plan)
    assert main(["card", circuit, "--plan", plan]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# Private inference card: ")
    assert all(f"\n## {name[0].upper()}{name[1:].replace('_', ' ')}\n" in page for name in SECTIONS)
    for suffix in (".md", ".json"):
        assert main(["card", circuit, "--plan", plan, "-o", str(tmp_path / f"card{suffix}")]) == 0
    assert (tmp_path / "card.md").read_text().rstrip() == page.rstrip()
    assert main(["card", circuit, "--plan", plan, "--json"]) == 0
    assert json.loads((tmp_path / "card.json").read_text()) == json.loads(capsys.readouterr().out.split("\n", 2)[2])
    for words, said in (
        ([], "--server URL"),
        ([circuit], "--plan FILE, or --params NAME"),
        ([circuit, "--plan", plan, "--params", "insecure-native-11"], "--plan FILE, or --params NAME"),
        (["default", "--plan", plan], "give its own with --plan"),
        ([circuit, "--plan", plan, "-o", str(tmp_path / "card.pdf")], "--out"),
    ):
        assert main(["card", *words]) == 1
        line = capsys.readouterr().err
        assert said in line
        assert line.count("\n") == 1


def test_a_servers_card_needs_no_permission_to_be_read(tmp_path: Path) -> None:
    """A simulated server's card can be read without --simulate; the card says that it would not be asked."""
    from tests.client.test_cli import heat
    from tests.server.serving import ServerProcess

    server = ServerProcess(save_model(tmp_path / "model"), tmp_path / "server")
    try:
        (tmp_path / "token.txt").write_text(server.token)
        words = ("card", "--server", server.url, "--token-file", str(tmp_path / "token.txt"), "--json")
        for more, said in (((), "it would not ask this server"), (("--simulate",), "it would ask this server")):
            done = heat(*words, "--keys", str(tmp_path / "keys"), *more)
            assert said in json.loads(done.stdout)["subject"]["this client says"]
        assert not (tmp_path / "keys" / "keys").exists()  # none was made for it
    finally:
        server.stop()
