# SPDX-License-Identifier: Apache-2.0
"""Every command README prints, in order, in one folder, on a model made on the spot; what differs is listed here."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs_commands import README, environment, run, words_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SUBSTITUTED = (  # (what README prints, what is run, why)
    (r"^(heat train .*)$", r"\1 --share 0.004 --batch 2", "share: minutes instead of hours"),
    (r"native-16-r40", "insecure-native-11", "parameter set: a toy, on any machine"),
    (r"--host 0\.0\.0\.0", "--host localhost", "host"),
    (r"^(heat serve .*--plan .*)$", r"\1 --port 0 --insecure", "port; the toy set must be allowed"),
    (r"https://fhe\.example(:\d+)?", "{server}", "host and port"),
    (r"^(heat generate --server .*)$", r"\1 --ca c.pem --insecure", "the certificate is the server's own; the toy set"),
    (r"--tokens \d+", "--tokens 2", "two tokens do"),
    (
        r"^(heat proxy --local) --port \d+$",
        r"\1 --port 0 --circuit out/mine/circuit --params insecure-native-11",
        "port; the model made here",
    ),
    (r"http://127\.0\.0\.1:8080/v1", "{proxy}", "port"),
    (r"default-heat", "my-gpt2-heat", "the model made here"),
    (
        r'heatfhe\.train\(prepared, "corpus\.txt", folder="out/mine"\)',
        'heatfhe.train(prepared, "corpus.txt", training.recipe("tiny").adjusted(context=32), folder="out/python")',
        "share: a recipe of seconds",
    ),
    (r"^import heatfhe$", "import heatfhe\nfrom heatfhe import training", "for the line above"),
    (r"insecure-native-12-r40", "insecure-native-11", "parameter set: the smaller toy"),
)
ELSEWHERE = {  # first words -> the test that runs them
    "make demo": "tests/test_demo.py",
    "make test": "this suite",
    "make docs": "the tests of the site",
    "pip install": "tests/test_install.py",
}


def shown() -> list[tuple[str, str]]:
    """(language, text) of every command in README, in order: lines of a shell, whole blocks of Python."""
    text, found = README.read_text(), []
    for match in re.finditer(r"```(\w+)\n(.*?)```|`(heat proxy [^`]+|pip install [^`]+)`", text, flags=re.S):
        language, body, inline = match.groups()
        if inline:
            found.append(("console", inline))
        elif language in ("python", "py"):
            found.append(("python", body))
        elif language in ("console", "sh"):
            lines = [line.removeprefix("$ ").split("  #")[0].strip() for line in body.splitlines()]
            found += [("console", line) for line in lines if line]
        else:
            assert language == "text", f"README has a block of {language}, which this test does not run"
    return found


def substituted(text: str, places: dict[str, str]) -> str:
    for pattern, instead, _ in SUBSTITUTED:
        text = re.sub(pattern, instead, text, flags=re.M)
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return text


@contextlib.contextmanager
def running(command: str, sign: str, folder: Path) -> Iterator[str]:
    """A command that goes on; yields the address it says."""
    log = folder / f"{command.split()[1]}.log"
    with log.open("w") as err:
        process = subprocess.Popen(
            words_of(command), stdout=subprocess.PIPE, stderr=err, text=True, cwd=folder, env=environment(folder)
        )
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if line.startswith(sign)), None)
        assert line is not None, f"{command}\n{log.read_text()[-2000:]}"
        yield re.findall(r"https?://\S+", line)[0]
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


def program(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment(folder), check=False)
    assert done.returncode == 0, f"{words}\n{done.stderr[-2000:]}"
    return done.stdout


def test_every_command_of_readme_in_order(tmp_path: Path) -> None:
    for package in ("torch", "numba", "fastapi", "cryptography", "openai"):
        pytest.importorskip(package, reason="training, serving and asking need their extras")
    from heatfhe.server import self_signed
    from tests.cli.test_own_model import own_model

    folder = own_model(tmp_path, 64)
    certificate, key = self_signed(folder / "tls", ["localhost"])
    certificate.rename(folder / "c.pem")
    key.rename(folder / "k.pem")
    ran, places = [], {}
    with contextlib.ExitStack() as stack:
        for language, printed in shown():
            if any(printed.startswith(words) for words in ELSEWHERE):
                continue
            command = substituted(printed, places)
            ran.append(" ".join(command.split()[:2]))
            if language == "python":
                assert program([sys.executable, "-c", command], folder).strip()
            elif command.startswith("heat serve") and "--add-client" in command:
                (folder / "token.txt").write_text(run(command, folder).splitlines()[-1])
            elif command.startswith("heat serve"):
                places["server"] = stack.enter_context(running(command, "serving ", folder))
            elif command.startswith("heat proxy"):
                places["proxy"] = stack.enter_context(running(command, "OpenAI-compatible", folder))
            elif command.startswith("heat "):
                assert run(command, folder).strip(), printed
            elif command.startswith("curl "):
                said = program(["bash", "-c", command.replace("curl ", "curl -sS ", 1)], folder)
                assert '"choices"' in said, said
            else:
                pytest.fail(f"README shows {printed!r}, which this test does not know; add it to a list above")
    assert ran[:5] == ["heat train", "heat plan", "heat serve", "heat serve", "heat generate"]
    assert "heat proxy" in ran
    assert any(words.startswith("curl") for words in ran)


def test_the_list_of_substitutions_is_of_what_readme_prints() -> None:
    """A line of the list that matches nothing is left over from another README; those for Python may move to docs."""
    page = "\n".join(text for _, text in shown())
    for pattern, _, why in SUBSTITUTED:
        if "import" in pattern or r"heatfhe\.train" in pattern or "r40" in pattern:
            continue
        assert re.search(pattern, page, flags=re.M), f"nothing in README is {pattern} ({why})"
