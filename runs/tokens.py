# SPDX-License-Identifier: Apache-2.0
"""A text as the array of token ids that the other scripts take: every document behind an end of text.

    python runs/tokens.py wiki.finetune.txt.xz --tokenizer CHECKPOINT -o train.npy

TEXT is anything that ``heat train --text`` takes. 38 MB of English become 16 MB (16-bit ids) in 20 s on one core.
"""

from __future__ import annotations

import argparse
import sys
from array import array
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.models import encoder
from heatfhe.training import read_documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of a checkpoint or of a tokenizer")
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    encode, end = encoder(args.tokenizer)
    stream = array("L")
    for document in read_documents(args.text):
        stream.append(end)
        stream.extend(encode(document))
    ids = np.frombuffer(stream, dtype=np.dtype(f"u{stream.itemsize}"))
    kind = np.uint16 if ids.max() < 1 << 16 else np.uint32
    np.save(args.out, ids.astype(kind))
    print(f"{args.out}: {len(ids):,} tokens, {args.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
