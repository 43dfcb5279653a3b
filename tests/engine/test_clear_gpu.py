# SPDX-License-Identifier: Apache-2.0
"""The clear engine on other arrays than numpy's: a stand-in that refuses to mix here, CuPy where there is a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.cli import main
from heatfhe.engine import BootstrapNoise, ClearEngine, Conversation, Runner, key_request
from heatfhe.engine.arrays import Arrays, arrays_on
from heatfhe.engine.cycles import shortest
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.errors import ConfigError, EngineError, MissingExtraError
from heatfhe.evaluation import drift, sample_windows
from heatfhe.planning import Plan, plan
from tests.engine.foreign import Far, Foreign
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit()
WINDOWS = sample_windows(CIRCUIT, 3, 7, seed=5)


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(CIRCUIT, clear_params(64), programs=("generate", "prompt", "logits"))


def logits(made: Plan, device: str | Arrays, **options: Any) -> np.ndarray:
    """Logits of three windows of six positions, as one batch."""
    engine = ClearEngine(made.params, request=key_request(made), device=device, **options)
    talk = Conversation(Runner(made, engine, made.source(CIRCUIT)))
    rows = []
    for column in WINDOWS[:, :-1].T:
        x = engine.value(made.packing.pack_residual(CIRCUIT.folded.token[column]))
        rows.append(made.packing.unpack_vocabulary([engine.read(v) for v in talk.logits([x])]))
    return np.stack(rows, axis=1)


def words(made: Plan, device: str | Arrays) -> tuple[np.ndarray, bytes]:
    """The near one-hot rows of three generated tokens, and the last one's wire form."""
    engine = ClearEngine(made.params, request=key_request(made), device=device)
    talk = Conversation(Runner(made, engine, made.source(CIRCUIT)))
    x = engine.parse(engine.dump(engine.value(made.packing.pack_residual(CIRCUIT.folded.token[3]))))
    parts = [talk.generate([x]), talk.generate(), talk.generate()]
    found = np.stack([made.packing.unpack_vocabulary([engine.read(v) for v in row]) for row in parts])
    return found, engine.dump(parts[-1][0])


def bent_table(params: str) -> NoiseTable:
    sizes = {1.0: 1e-5, 16.0: 1.6e-4}
    periods = {1: PeriodNoise(1e-5, -1e-4), 64: PeriodNoise(1e-5, 0.0)}
    return NoiseTable(
        name="made up", engine="clear", params=params, hardware="none", samples=1,
        sigma=sizes, constant=sizes, largest=sizes, periods=periods,
    )  # fmt: skip


def noisy(noise: Any) -> dict[str, Any]:
    return {"noise": noise, "rng": np.random.default_rng(4), "strict": False}


def test_nothing_slips_past_the_seam(made: Plan) -> None:
    """A stand-in that refuses numpy's arrays gives numpy's own bits, noise included; only answers come back."""
    far = Far()
    assert np.array_equal(logits(made, far), logits(made, "cpu"))
    assert far.moved["get"] == WINDOWS[:, :-1].size * CIRCUIT.shape.vocabulary  # one ciphertext of logits, all slots
    for noise in (BootstrapNoise(sigma=1e-4), bent_table(made.params.name).noise(made.params)):
        assert np.array_equal(logits(made, Far(), **noisy(noise)), logits(made, "cpu", **noisy(noise)))
    for found, wanted in zip(words(made, Far()), words(made, "cpu")):
        assert np.array_equal(found, wanted)


def test_plaintexts_are_taken_there_once(made: Plan) -> None:
    """A second window on the same engine moves its inputs and what depends on the position, no weight."""
    far = Far()
    engine = ClearEngine(made.params, device=far)
    x = made.packing.pack_residual(CIRCUIT.folded.token[3])

    def token() -> int:
        before = far.moved["put"]
        Conversation(Runner(made, engine, made.source(CIRCUIT))).logits([engine.value(x)])
        return far.moved["put"] - before

    diagonals = sum(m.plaintexts for m in made.products.values()) * made.params.slots
    assert token() > diagonals / 4  # those that repeat go as one cycle
    assert token() == shortest(x).size


def test_a_refresh_is_checked_there_too() -> None:
    engine = ClearEngine(clear_params(16), device=Far())
    with pytest.raises(EngineError, match="not real"):
        engine.bootstrap(engine.times_i(engine.value(np.ones(16))), period=1, bound=2.0)
    with pytest.raises(EngineError, match="does not repeat with period 4"):
        engine.bootstrap(engine.value(np.arange(16.0)), period=4, bound=16.0)
    with pytest.raises(EngineError, match="up to 1 met 15"):
        engine.bootstrap(engine.value(np.arange(16.0)), period=16, bound=1.0)


def test_the_stand_in_refuses_what_cupy_refuses() -> None:
    with pytest.raises(TypeError, match="ndarray met"):
        Foreign(np.ones(2)) * np.ones(2)
    with pytest.raises(TypeError):
        np.ones(2) * Foreign(np.ones(2))
    with pytest.raises(TypeError, match="implicit"):
        np.asarray(Foreign(np.ones(2)))


def test_an_unknown_device_and_a_missing_library_are_said() -> None:
    with pytest.raises(ConfigError, match="cpu or cuda, not 'tpu'"):
        arrays_on("tpu")
    try:
        import cupy  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(MissingExtraError, match="the clear engine on a GPU"):
            ClearEngine(clear_params(16), device="cuda")


COMMANDS = (
    ["drift", "--sigma", "1e-4", "--windows", "2", "--seeds", "2", "--positions", "3"],
    ["evaluate", "--windows", "2", "--positions", "3", "--free", "2"],
)


def fidelities(folder: Path, command: list[str], device: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a command says of fidelity."""
    name, *options = command
    assert main([name, str(folder), "--params", "insecure-openfhe-11", *options, "--device", device, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    found: dict[str, Any] = (body if name == "drift" else body["evaluations"])[0]["fidelity"]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_the_device_to_the_engine(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    CIRCUIT.save(tmp_path / "tiny")
    wanted = fidelities(tmp_path / "tiny", command, "cpu", capsys)
    asked: list[Far] = []

    def arrays(device: str) -> Arrays:
        if device == "cpu":  # a keyring's
            return Arrays()
        asked.append(Far())
        return asked[-1]

    monkeypatch.setattr("heatfhe.engine.clear.arrays_on", arrays)
    assert fidelities(tmp_path / "tiny", command, "cuda", capsys) == wanted
    assert [far.moved["put"] > 0 for far in asked] == [True]


@pytest.mark.gpu
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_a_gpu(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CIRCUIT.save(tmp_path / "tiny")
    found, wanted = (fidelities(tmp_path / "tiny", command, device, capsys) for device in ("cuda", "cpu"))
    assert found["kl_by_position"] == pytest.approx(wanted["kl_by_position"], abs=1e-10)
    assert found["top1"] == wanted["top1"]


@pytest.mark.gpu
def test_cupy_equals_numpy(made: Plan) -> None:
    """Whole tokens and batched windows, with and without noise: 1e-10, the same noise from the same seed."""
    clear = logits(made, "cpu")
    assert np.abs(logits(made, "cuda") - clear).max() < 1e-10
    for noise in (BootstrapNoise(sigma=1e-4), bent_table(made.params.name).noise(made.params)):
        found, wanted = (logits(made, device, **noisy(noise)) for device in ("cuda", "cpu"))
        assert np.abs(found - wanted).max() < 1e-10
        assert np.abs(wanted - clear).max() > 1e-6
    (found, blob), (wanted, other) = words(made, "cuda"), words(made, "cpu")
    assert np.abs(found - wanted).max() < 1e-10
    assert len(blob) == len(other)


@pytest.mark.gpu
def test_drift_is_the_same_on_a_gpu(made: Plan) -> None:
    noise = BootstrapNoise(sigma=1e-3)
    found, wanted = (drift(made, CIRCUIT, WINDOWS[:2], noise=noise, device=d) for d in ("cuda", "cpu"))
    assert found.fidelity.kl_by_position == pytest.approx(wanted.fidelity.kl_by_position, abs=1e-10)
    assert found.fidelity.top1_by_position == wanted.fidelity.top1_by_position
    assert found.fidelity.perplexity == pytest.approx(wanted.fidelity.perplexity, abs=1e-10)
