# SPDX-License-Identifier: Apache-2.0
"""Files and folders in parts of a size, for a machine that takes little at a time, and put together again there.

    python runs/carry.py pack train.npy heldout.npy weights pymoo -o PARTS [--most 48]
    python runs/carry.py join PARTS/1 PARTS/2 PARTS/3 -o HERE

PARTS/1, PARTS/2, ... hold the parts of one compressed archive, each of at most so many MiB. Parts may arrive in any
order, one in a folder; joining checks that they are all there and as they were before it unpacks anything.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

PART, FACTS = "part", "part.json"


def pack(paths: Sequence[Path], out: Path, most: int) -> list[Path]:
    """Write the parts; the folders they are in."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as tar:
        for path in paths:
            tar.add(path, path.resolve().name)
    data = buffer.getvalue()
    whole, made = hashlib.sha256(data).hexdigest(), []
    count = max(1, -(-len(data) // most))
    each = -(-len(data) // count)
    for number in range(count):
        folder = out / str(number + 1)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PART).write_bytes(data[number * each : (number + 1) * each])
        (folder / FACTS).write_text(json.dumps({"number": number + 1, "of": count, "whole": whole}) + "\n")
        made.append(folder)
    return made


def join(folders: Sequence[Path], out: Path) -> list[str]:
    """Unpack the archive that these folders hold the parts of; the names in it."""
    facts = {}
    for folder in folders:
        if not (folder / FACTS).is_file():
            raise SystemExit(f"{folder}: holds no part (no {FACTS}); give the folders that were packed")
        facts[folder] = json.loads((folder / FACTS).read_text())
    found = {fact["number"]: folder for folder, fact in facts.items()}
    count, wholes = next(iter(facts.values()))["of"], {fact["whole"] for fact in facts.values()}
    if len(wholes) > 1:
        raise SystemExit(f"{', '.join(map(str, folders))}: parts of {len(wholes)} different archives")
    if missing := [str(n) for n in range(1, count + 1) if n not in found]:
        raise SystemExit(f"part {', '.join(missing)} of {count} is missing")
    data = b"".join((found[n] / PART).read_bytes() for n in range(1, count + 1))
    if hashlib.sha256(data).hexdigest() not in wholes:
        raise SystemExit("the parts are not what was packed: copy them again")
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as tar:
        tar.extractall(out, filter="data")
        return sorted({name.split("/")[0] for name in tar.getnames()})


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("pack", "join"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--most", type=float, default=48.0, help="MiB of a part (default 48)")
    args = parser.parse_args(given)
    if args.stage == "join":
        print(f"{args.out}: {', '.join(join(args.paths, args.out))}")
        return 0
    if not args.most > 0:
        parser.error(f"--most is a size in MiB above 0, got {args.most:g}")
    if missing := [str(path) for path in args.paths if not path.exists()]:
        parser.error(f"{missing[0]}: no such file or folder")
    for folder in pack(args.paths, args.out, int(args.most * 2**20)):
        print(f"{folder}: {(folder / PART).stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
