# SPDX-License-Identifier: Apache-2.0
"""heat lm-eval on local tasks made here: log-likelihoods are those of Circuit.run, clear, under noise and by a plan.

Tests that hand over to lm_eval need the extra (scripts/setup lm-eval); nothing is fetched.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.cli.scorers import open_scorer
from heatfhe.errors import ConfigError
from heatfhe.evaluation import noise_tap
from heatfhe.evaluation.fidelity import log_softmax
from heatfhe.evaluation.scorers import seed_of
from heatfhe.stages import solved
from tests.tiny import tiny_circuit

WORDS = ["<|endoftext|>", *(f"w{i}" for i in range(1, 32))]
CHOICES = [["w5", "w6 w7"], ["w1 w2 w3", "w9"], ["w4", "w8"], ["w11", "w12 w13"]]
STARTS = ["w1 w2", "w30", "w7 w7 w7", "w3 w14 w15 w9 w2"]


def save(folder: Path) -> Circuit:
    """A tiny circuit with a tokenizer of 32 words."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token=WORDS[0]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    files = {"tokenizer.json": words.to_str().encode()}
    made = replace(tiny_circuit(layers=1, width=16, vocabulary=32, context=16), tokenizer=files)
    made.save(folder)
    return made


def write_tasks(folder: Path) -> None:
    """Three local tasks: multiple choice, a whole text's perplexity, an answer up to a stop word."""
    folder.mkdir()
    rows = [{"start": s, "choices": c, "gold": i % 2} for i, (s, c) in enumerate(zip(STARTS, CHOICES, strict=True))]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = {"page": " ".join(f"w{1 + (7 * i) % 31}" for i in range(40))}
    (folder / "pages.jsonl").write_text(json.dumps(text) + "\n")

    def dataset(name: str) -> str:
        return f'dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "{folder / name}"\ntest_split: test\n'

    (folder / "choose.yaml").write_text(
        f"task: heat_choose\n{dataset('rows.jsonl')}output_type: multiple_choice\n"
        'doc_to_text: "{{start}}"\ndoc_to_target: gold\ndoc_to_choice: choices\nmetric_list:\n  - metric: acc\n'
    )
    (folder / "page.yaml").write_text(
        f"task: heat_page\n{dataset('pages.jsonl')}output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: "{{page}}"\nmetric_list:\n  - metric: word_perplexity\n'
    )
    (folder / "answer.yaml").write_text(
        f"task: heat_answer\n{dataset('rows.jsonl')}output_type: generate_until\n"
        'doc_to_text: "{{start}}"\ndoc_to_target: "{{choices[0]}}"\n'
        'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 3\n  do_sample: false\n'
        "metric_list:\n  - metric: exact_match\n"
    )


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed (scripts/setup lm-eval)")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf" / "datasets"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(sys, "argv", ["heat"])
    write_tasks(tmp_path / "tasks")
    return tmp_path


def answers(harness: Path, task: str, **options: Any) -> dict[str, Any]:
    """Results and samples of a task by the harness, on what the command's options open."""
    import lm_eval

    from heatfhe.evaluation import TaskModel

    model = TaskModel(open_scorer(**options))
    manager = lm_eval.tasks.TaskManager(include_path=str(harness / "tasks"), include_defaults=False)
    asked: Any = lm_eval.simple_evaluate
    found: dict[str, Any] = asked(
        model=model, tasks=[task], task_manager=manager, log_samples=True, bootstrap_iters=0, verbosity="ERROR"
    )
    return found


def nats(circuit: Circuit, context: list[int], continuation: list[int], sigma: float = 0.0, seed: int = 0) -> float:
    row = [*context, *continuation][:-1]
    options: dict[str, Any] = {}
    if sigma:
        options["tap"] = noise_tap(solved(circuit.stages), sigma, np.random.default_rng(seed_of(row, seed)))
    logs = log_softmax(circuit.run(row, **options))[-len(continuation) :]
    return float(logs[np.arange(len(continuation)), continuation].sum())


def check_choices(circuit: Circuit, samples: list[dict[str, Any]], sigma: float = 0.0, seed: int = 0) -> float:
    """Every log-likelihood is Circuit.run's to 1e-6; returns the accuracy they give."""
    correct = 0
    for sample in samples:
        number = sample["doc_id"]
        context = circuit.encode(STARTS[number])
        wanted = [nats(circuit, context, circuit.encode(choice), sigma, seed) for choice in CHOICES[number]]
        found = [float(response[0][0]) for response in sample["resps"]]
        assert found == pytest.approx(wanted, abs=1e-6)
        correct += int(np.argmax(wanted)) == number % 2
    return correct / len(samples)


def test_by_command_choices_pages_and_answers(harness: Path) -> None:
    circuit, out = save(harness / "circuit"), harness / "out"
    given = ["--include_path", str(harness / "tasks"), "--output_path", str(out), "--log_samples", "--batch_size", "3"]
    tasks = ["--tasks", "heat_choose,heat_page,heat_answer"]
    assert main(["lm-eval", str(harness / "circuit"), *tasks, *given, "--quiet"]) == 0
    (path,) = out.rglob("results_*.json")
    results = json.loads(path.read_text())
    samples = {
        task: [json.loads(line) for line in next(out.rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()]
        for task in ("heat_choose", "heat_answer")
    }
    accuracy = check_choices(circuit, samples["heat_choose"])
    assert results["results"]["heat_choose"]["acc,none"] == pytest.approx(accuracy)
    assert results["config"]["model_args"]["engine"] == "none"
    for sample in samples["heat_answer"]:
        tokens = circuit.generate(circuit.encode(STARTS[sample["doc_id"]]), 3).tokens
        tokens = tokens[: tokens.index(0)] if 0 in tokens else tokens
        assert sample["resps"][0][0] == circuit.decode(tokens)
    page = circuit.encode(" ".join(f"w{1 + (7 * i) % 31}" for i in range(40)))
    # as many tokens as fit at a time; the last window has all the context there is room for
    total = nats(circuit, [0], page[:16]) + nats(circuit, page[15:16], page[16:32])
    total += nats(circuit, page[23:32], page[32:40])
    assert results["results"]["heat_page"]["word_perplexity,none"] == pytest.approx(math.exp(-total / 40), rel=1e-6)


@pytest.mark.slow  # most of a handover's time is the harness's own start
def test_by_command_under_noise_as_json(harness: Path, capsys: pytest.CaptureFixture[str]) -> None:
    circuit = save(harness / "circuit")
    given = ["--tasks", "heat_choose", "--include_path", str(harness / "tasks"), "--limit", "3"]
    given += ["--log_samples", "--output_path", str(harness / "out"), "--sigma", "1e-3", "--noise-seed", "3"]
    assert main(["lm-eval", str(harness / "circuit"), *given, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["n-samples"]["heat_choose"]["effective"] == 3
    (path,) = (harness / "out").rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert body["results"]["heat_choose"]["acc,none"] == pytest.approx(check_choices(circuit, samples, 1e-3, 3))


def test_under_noise_and_by_a_plan_on_an_engine(harness: Path) -> None:
    circuit = save(harness / "circuit")
    noisy = answers(harness, "heat_choose", model=str(harness / "circuit"), sigma=1e-3, noise_seed=3)
    check_choices(circuit, noisy["samples"]["heat_choose"], 1e-3, 3)
    options = {"model": str(harness / "circuit"), "engine": "clear", "params": "insecure-openfhe-11"}
    planned = answers(harness, "heat_choose", **options)
    check_choices(circuit, planned["samples"]["heat_choose"])


def test_a_prepared_model_scores_as_deployed_and_as_exact(harness: Path) -> None:
    torch = pytest.importorskip("torch")
    from heatfhe.lowering import export
    from heatfhe.ranges import calibrate
    from heatfhe.sites import prepare, save_prepared
    from tests.gpt2_tiny import random_tokens, tiny_gpt2

    files = dict(save(harness / "circuit").tokenizer)
    prepared = prepare(tiny_gpt2(0, layers=1, vocab_size=32))
    tokens = random_tokens(1, rows=24, vocabulary=32)
    prepared.adopt(calibrate(prepared, [tokens], 1e-2, margin=1.3, activation_tolerance=1e-2))
    save_prepared(prepared, harness / "model", tokenizer=files)
    circuit = export(prepared, tokenizer=files)
    for mode in ("deployed", "exact"):
        found = answers(harness, "heat_choose", model=str(harness / "model"), mode=mode)
        for sample in found["samples"]["heat_choose"]:
            for choice, response in zip(CHOICES[sample["doc_id"]], sample["resps"], strict=True):
                context, continuation = circuit.encode(STARTS[sample["doc_id"]]), circuit.encode(choice)
                row = torch.tensor([*context, *continuation][:-1])
                logs = torch.log_softmax(prepared.logits(row, mode="exact").double(), -1)[-len(continuation) :]
                wanted = float(sum(logs[i, t] for i, t in enumerate(continuation)))
                if mode == "deployed":
                    wanted = nats(circuit, context, continuation)
                assert float(response[0][0]) == pytest.approx(wanted, abs=1e-4)  # float32


def test_answers_are_not_drawn_at_random(harness: Path) -> None:
    save(harness / "circuit")
    path = harness / "tasks" / "answer.yaml"
    path.write_text(path.read_text().replace("do_sample: false", "do_sample: true\n  temperature: 0.7"))
    with pytest.raises(ConfigError, match="the likeliest one: --gen_kwargs do_sample=False"):
        answers(harness, "heat_answer", model=str(harness / "circuit"))


def test_perplexity_of_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    circuit = save(tmp_path / "circuit")
    text = " ".join(f"w{1 + (5 * i) % 31}" for i in range(30))
    (tmp_path / "story.txt").write_text(text)
    arguments = ["lm-eval", str(tmp_path / "circuit"), "--text", str(tmp_path / "story.txt")]
    assert main([*arguments, "--window", "8", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    tokens = circuit.encode(text)
    total = sum(nats(circuit, tokens[i : i + 1], tokens[i + 1 : i + 9]) for i in (0, 9, 18))
    assert body["perplexity"] == pytest.approx(math.exp(-total / 24), rel=1e-9)
    assert (body["windows"], body["diverged"], body["window"]) == (3, 0, 8)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ([], "give --tasks NAME"),
        (["--tasks", "x", "--model_args", "a=b"], "the model is the first argument"),
        (["--text", "t.txt", "--limit", "3"], "--limit is an option of lm_eval"),
        (["--text", "t.npy", "--engine", "native", "--sigma", "1e-3"], "--sigma is for a circuit without an engine"),
        (["--text", "t.npy", "--noise", "n.json"], "--noise is for --engine clear"),
        (["--text", "t.npy", "--mode", "exact"], "--mode is for a checkpoint"),
    ],
)
def test_refusals(tmp_path: Path, extra: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "circuit")
    assert main(["lm-eval", str(tmp_path / "circuit"), *extra]) == 1
    assert said in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "circuit")
    for name in [
        n for n in sys.modules if n.startswith(("lm_eval", "heatfhe.cli.lm_eval_model", "heatfhe.evaluation.tasks"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["lm-eval", str(tmp_path / "circuit"), "--tasks", "x"]) == 3
    assert "pip install 'heatfhe[lm-eval]'" in capsys.readouterr().err
