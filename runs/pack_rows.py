# SPDX-License-Identifier: Apache-2.0
"""What heat compare has made so far in a few small files, for a machine that gives few back.

    python runs/pack_rows.py FOLDER OUT [--params insecure-openfhe-12] [--circuits heat,heat:relaxed,squeezed]

OUT gets compare.json and compare.md (by runs/compare_rows.py while the table is not finished), rows.tar.xz with every
row's measurements, counts, training log and search, without weights, and circuits-NAME.tar.xz with the circuits of the
presets named, all seeds of one in a file (11 MB for three of the default model). Rows in rows.tar.xz can be put into a
table again, by runs/compare_rows.py, but not be gone on with: that takes the run folder itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

WEIGHTY = {"checkpoint", "tensorboard", "packed", "tokenizer"}
LIMIT = 16 << 20  # bytes of one file that come back


def pack(folder: Path, paths: list[Path], target: Path) -> None:
    """An archive of these paths, named from the folder."""
    with tarfile.open(target, "w:xz") as archive:
        for path in paths:
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    size = target.stat().st_size
    print(f"{target}: {len(paths)} files, {size / 2**20:.1f} MiB{' (OVER 16 MiB)' if size > LIMIT else ''}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--params", default="insecure-openfhe-12")
    parser.add_argument("--circuits", default="heat,heat:relaxed,plan-aware,squeezed")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tables = [args.folder / "compare.json", args.folder / "compare.md"]
    if all(path.exists() for path in tables):
        for path in tables:
            (args.out / path.name).write_bytes(path.read_bytes())
    else:
        script = Path(__file__).parent / "compare_rows.py"
        command = [sys.executable, str(script), str(args.folder), "-o", str(args.out), "--params", args.params]
        subprocess.run(command, check=True)
    files = sorted(path for path in args.folder.rglob("*") if path.is_file())
    small = [p for p in files if p.suffix != ".safetensors" and not WEIGHTY & set(p.relative_to(args.folder).parts)]
    pack(args.folder, small, args.out / "rows.tar.xz")
    for preset in filter(None, args.circuits.split(",")):
        name, _, solver = preset.partition(":")
        row = f"{name}-{solver or 'plain'}"
        made = [
            p for p in files if p.relative_to(args.folder).parts[0].startswith(f"{row}-seed-") and "circuit" in p.parts
        ]
        if made:
            pack(args.folder, made, args.out / f"circuits-{row}.tar.xz")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
