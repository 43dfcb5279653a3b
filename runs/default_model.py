# SPDX-License-Identifier: Apache-2.0
"""Train the embedded default model: tokenizer, parent checkpoint in float16, and text sampled from the model itself.

    python runs/default_model.py --data DIR --out runs/out/default [--minutes 1.5] [--device cuda]

DIR holds stories.train.txt.xz and stories.heldout.txt.xz (TinyStories, CDLA-Sharing-1.0). A few minutes on a GPU;
on a CPU give it a night (--minutes 400). The shape: 4 layers, width 128, 4 heads, context 128, vocabulary 1024.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

END = "<|endoftext|>"


def documents(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8") as f:
        return [d.strip("\n") for d in f.read().split(END) if d.strip("\n")]


def make_tokenizer(docs: list[str], vocabulary: int) -> Tokenizer:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(docs, vocab_size=vocabulary, special_tokens=[END], show_progress=False)
    return Tokenizer.from_str(bpe.to_str())


def token_stream(tokenizer: Tokenizer, docs: list[str]) -> torch.Tensor:
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(docs):
        ids += [0, *encoding.ids]
    return torch.tensor(ids, dtype=torch.long)


def windows(stream: torch.Tensor, batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(0, stream.numel() - length - 1, (batch, 1), generator=generator, device=stream.device)
    return stream[starts + torch.arange(length + 1, device=stream.device)]


@torch.no_grad()
def held_out(model: GPT2LMHeadModel, stream: torch.Tensor, length: int, device: str) -> float:
    model.eval()
    rows = stream[: stream.numel() // (length + 1) * (length + 1)].view(-1, length + 1).to(device)
    losses = []
    for part in rows.split(256):
        logits = model(part[:, :-1]).logits.float()
        losses.append(functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item())
    model.train()
    return sum(losses) / (rows.shape[0] * length)


def train(args: argparse.Namespace, stream: torch.Tensor, heldout: torch.Tensor) -> tuple[GPT2LMHeadModel, dict]:
    torch.manual_seed(args.seed)
    config = GPT2Config(
        vocab_size=args.vocabulary, n_positions=args.context, n_embd=args.width, n_layer=args.layers, n_head=args.heads,
        bos_token_id=0, eos_token_id=0, resid_pdrop=args.dropout, embd_pdrop=args.dropout, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(args.device).train()
    decay = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        fused=args.device == "cuda",
    )
    generator = torch.Generator(args.device).manual_seed(args.seed)
    stream = stream.to(args.device)
    step, began, best = 0, time.time(), math.inf
    weights = list(model.parameters())
    average = [p.detach().clone() for p in weights]
    forward = torch.compile(model) if args.device == "cuda" else model
    while (share := (time.time() - began) / (60 * args.minutes)) < 1:
        lr = args.lr * min(1.0, (step + 1) / 100) * max(0.02, 0.5 * (1 + math.cos(math.pi * min(1.0, share))))
        for group in optimizer.param_groups:
            group["lr"] = lr
        rows = windows(stream, args.batch, args.context, generator)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            logits = forward(rows[:, :-1]).logits
        loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in weights], 0.005)
        step += 1
        if step % 250 == 0:
            value = held_out(model, heldout[:100_000], args.context, args.device)
            best = min(best, value)
            print(f"update {step:5d}  train {loss.item():.4f}  held-out {value:.4f}  lr {lr:.2e}", flush=True)
    with torch.no_grad():
        for p, mean in zip(weights, average):
            p.copy_(mean)
    model.half().float()  # the stored float16 weights are the model
    record = {
        "updates": step, "seconds": round(time.time() - began), "tokens_per_update": args.batch * args.context,
        "held_out_nats_per_token": round(held_out(model, heldout, args.context, args.device), 4),
        "parameters": sum(p.numel() for p in model.parameters()), "seed": args.seed,
    }  # fmt: skip
    return model, record


@torch.no_grad()
def sample(model: GPT2LMHeadModel, tokenizer: Tokenizer, args: argparse.Namespace) -> str:
    """Stories from the model itself: the first one starts from the end token, text goes on in a sliding window."""
    torch.manual_seed(args.seed + 1)
    model.eval()
    rows = torch.zeros((args.sample_rows, 1), dtype=torch.long, device=args.device)
    for _ in range(args.sample_tokens):
        logits = model(rows[:, -(args.context - 1) :]).logits[:, -1].float() / args.temperature
        rows = torch.cat([rows, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    stories = []
    for row in rows.tolist():
        text = tokenizer.decode(row[1:], skip_special_tokens=False)
        whole = text.split(END)[:-1]  # the last one was cut by the length
        stories += [s.strip("\n") for s in whole if len(s) > 120]
    return f"\n{END}\n".join(stories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=1.5)
    for name, value in (
        ("layers", 4),
        ("width", 128),
        ("heads", 4),
        ("context", 128),
        ("vocabulary", 1024),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--sample-rows", type=int, default=2048)
    parser.add_argument("--sample-tokens", type=int, default=360)
    args = parser.parse_args()

    train_docs, held_docs = (documents(args.data / f"stories.{part}.txt.xz") for part in ("train", "heldout"))
    tokenizer = make_tokenizer(train_docs, args.vocabulary)
    stream, heldout = token_stream(tokenizer, train_docs), token_stream(tokenizer, held_docs)
    model, record = train(args, stream, heldout)
    text = sample(model, tokenizer, args)

    args.out.mkdir(parents=True, exist_ok=True)
    weights = {k: v.half().contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, args.out / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"torch_dtype": "float16", "dtype": "float16"}
    (args.out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True, default=str) + "\n")
    tokenizer.save(str(args.out / "tokenizer.json"))
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("data", "out")}
    (args.out / "training.json").write_text(
        json.dumps({**record, "settings": settings}, indent=1, sort_keys=True) + "\n"
    )
    (args.out / "sampled.txt.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    print(json.dumps(record), len(text), "characters sampled")
    print(text[:1500])


if __name__ == "__main__":
    main()
