# SPDX-License-Identifier: Apache-2.0
"""runs/batch.py: jobs in order, alone where asked, what they made kept, and nothing done twice elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("tomllib")
SPAN = "import sys, time; a = time.time(); time.sleep(0.3); open(sys.argv[1], 'w').write(f'{a} {time.time()}')"
TABLE = """
[first]
command = "{python} {span} {folder}/first/span"
seconds = 1
makes = "span"
keep = ["span"]

[wide]
each = [0, 1]
command = "{python} {span} {folder}/wide-{n}/span"
seconds = 1
after = ["first"]
keep = ["span"]

[lonely]
command = "{python} {span} {folder}/lonely/span"
seconds = 1
after = ["first"]
alone = true
keep = ["span"]

[broken]
command = "{python} -c \\"raise SystemExit('no {what}')\\""
seconds = 1

[blocked]
command = "{python} --version"
seconds = 1
after = ["broken"]

[long]
command = "{python} --version"
seconds = 1e6
"""


def batch(table: Path | None, *options: str, code: int = 0) -> str:
    command = [sys.executable, str(ROOT / "runs" / "batch.py"), *([] if table is None else [str(table)]), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.toml"
    (tmp_path / "span.py").write_text(SPAN)
    path.write_text(TABLE.replace("{span}", str(tmp_path / "span.py")))
    return path


def span(folder: Path, name: str) -> tuple[float, float]:
    begin, end = map(float, (folder / name / "span").read_text().split())
    return begin, end


def test_order_lanes_what_is_kept_and_what_another_machine_still_does(tmp_path: Path, table: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    options = ("--given", "what=bread", "--lanes", "3", "--pack", str(kept), "--seconds", "300")
    said = batch(table, "--out", str(out), *options, code=1).splitlines()
    spans = {name: span(out, name) for name in ("first", "wide-0", "wide-1", "lonely")}
    assert max(spans["first"][1], spans["wide-0"][1], spans["wide-1"][1]) <= spans["lonely"][0]
    assert spans["first"][1] <= min(spans["wide-0"][0], spans["wide-1"][0])
    assert any("broken: failed (1)" in line for line in said)
    assert any("no bread" in line for line in said), "the end of a failed job's log is shown"
    assert said[-3:] == ["blocked: waits for broken", "long: left out: takes 1000000 s", "batch: ended"]
    with tarfile.open(kept / "first.tar.xz") as tar:
        assert tar.getnames() == ["first/finished", "first/log.txt", "first/span"]

    other = tmp_path / "other"
    only = ("--only", "wide-0,lonely,broken", "--unpack", str(kept))
    again = batch(table, "--out", str(other), *only, *options, code=1)
    assert "first: finished before" in again
    assert span(other, "first") == spans["first"]
    assert "wide-1" not in again
    (other / "first" / "span").write_text("1.0 2.0")
    batch(table, "--out", str(other), "--only", "first", "--unpack", str(kept), "--given", "what=bread")
    assert span(other, "first") == (1.0, 2.0), "what has gone on here is not what was packed elsewhere"
    assert again.count("failed (1)") == 2  # as it ends, and in the last lines: what failed is tried again


def test_jobs_wait_for_memory(tmp_path: Path, table: Path) -> None:
    """Two of 60 do not run beside each other within 100; one that takes more than there is runs by itself."""
    row = '[{name}]\ncommand = "{{python}} {span} {{folder}}/{name}/span"\nseconds = 1\nmemory = {memory}\n'
    sizes = {"a": 60, "b": 60, "c": 200}
    span_py = tmp_path / "span.py"
    table.write_text("".join(row.format(name=name, span=span_py, memory=size) for name, size in sizes.items()))
    batch(table, "--out", str(tmp_path / "out"), "--memory", "100")
    spans = sorted(span(tmp_path / "out", name) for name in sizes)
    assert spans[0][1] <= spans[1][0]
    assert spans[1][1] <= spans[2][0]


def test_what_comes_last_has_its_seconds_kept_free(tmp_path: Path) -> None:
    """A job without an end of its own is interrupted in time for the one that comes last, above it in the table."""
    table, out = tmp_path / "jobs.toml", tmp_path / "out"
    (tmp_path / "span.py").write_text(SPAN)
    (tmp_path / "long.py").write_text("import time\ntry:\n    time.sleep(900)\nexcept KeyboardInterrupt:\n    pass\n")
    table.write_text(
        f'[late]\ncommand = "{{python}} {tmp_path}/span.py {{folder}}/late/span"\nseconds = 45\nlast = true\n'
        f'[long]\ncommand = "{{python}} {tmp_path}/long.py"\nseconds = 1\n'
    )
    began = time.time()
    assert "late: finished after" in batch(table, "--out", str(out), "--seconds", "60")
    assert span(out, "late")[0] >= began + 60 - 45 - 12


def test_a_batch_in_the_background_is_watched_and_says_when_it_has_ended(tmp_path: Path, table: Path) -> None:
    out = tmp_path / "out"
    assert "no batch was started there" in batch(None, "--watch", "1", "--out", str(out), code=1)
    batch(table, "--out", str(out), "--only", "wide-0", "--given", "what=x", "--detach")
    said = batch(None, "--watch", "900", "--out", str(out))
    assert "wide-0: finished after" in said
    assert "batch: ended" in said
    assert "  wide-0: $ " in said, "the last line of its log"
    (out / "batch.pid").write_text(f"{os.getpid()}\n")
    (out / "batch.log").write_text("first: begun\n")
    options = ("--only", "wide-0", "--given", "what=x", "--detach")
    assert f"batch {os.getpid()} still runs there" in batch(table, "--out", str(out), *options, code=1)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    (out / "batch.pid").write_text(ended.stdout)
    assert "gone without a last word" in batch(None, "--watch", "900", "--out", str(out), code=3)


def test_what_was_too_large_to_keep_is_made_again_where_a_job_needs_it(tmp_path: Path, table: Path) -> None:
    out = tmp_path / "out"
    batch(table, "--out", str(out), "--only", "first", "--given", "what=x")
    (out / "first" / "span").unlink()
    assert "first: finished before" in batch(table, "--out", str(out), "--only", "first", "--given", "what=x")
    assert not (out / "first" / "span").exists()
    assert "first: finished after" in batch(table, "--out", str(out), "--only", "wide-0", "--given", "what=x")


def deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_interrupted_jobs_keep_what_they_have_and_go_on(tmp_path: Path) -> None:
    """Ctrl-C, as the end of the seconds does, lets a job write what it has, in a background shell too, which has its
    children ignore it; the next call goes on."""
    table, out = tmp_path / "jobs.toml", tmp_path / "out"
    body = (
        "import os, sys, time\n"
        "place = sys.argv[1]\n"
        "turn = len(os.listdir(place))\n"
        "try:\n"
        "    open(f'{place}/turn-{turn}', 'w').close()\n"
        "    time.sleep(0 if turn > 1 else 600)\n"
        "    open(f'{place}/end', 'w').close()\n"
        "except KeyboardInterrupt:\n"
        "    open(f'{place}/caught', 'w').close()\n"
    )
    (tmp_path / "job.py").write_text(body)
    table.write_text(
        f'[a]\ncommand = "{{python}} {tmp_path}/job.py {{folder}}/a"\nseconds = 9\npieces = true\nmakes = "end"\n'
    )
    command = [sys.executable, str(ROOT / "runs" / "batch.py"), str(table), "--out", str(out), "--seconds", "900"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=deaf)
    while not list(out.glob("a/turn-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert "a: to be gone on with" in process.communicate()[0]
    assert (out / "a" / "caught").exists()
    assert "a: finished after" in batch(table, "--out", str(out), "--seconds", "900")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nseconds = 1\n", "a has no 'command'"),
        ('[a]\ncommand = "x"\nseconds = 1\nlone = true\n', "a has 'lone', which is none of after, alone"),
        ('[a]\ncommand = "x"\nseconds = 1\nafter = ["b"]\n', "a comes after 'b', which no row above it has for a name"),
        ('[a]\ncommand = "x {text}"\nseconds = 1\n', "a needs --given text=..."),
    ],
)
def test_a_table_that_is_wrong_runs_nothing(tmp_path: Path, text: str, said: str) -> None:
    table = tmp_path / "jobs.toml"
    table.write_text(text)
    assert said in batch(table, "--out", str(tmp_path / "out"), code=1)


def test_unknown_job(tmp_path: Path, table: Path) -> None:
    assert "no job 'x'; have: first, wide-0" in batch(table, "--out", str(tmp_path), "--only", "x", code=1)


def test_what_is_given_has_a_name(tmp_path: Path, table: Path) -> None:
    assert "NAME=VALUE, got 'bread'" in batch(table, "--out", str(tmp_path), "--given", "bread", code=2)


def test_our_own_table_names_scripts_that_are_there() -> None:
    listed = batch(ROOT / "runs" / "h200.toml", "--list")
    scripts = {word for word in listed.split() if word.startswith("runs/") and word.endswith(".py")}
    assert len(scripts) >= 5
    assert all((ROOT / name).is_file() for name in scripts)
