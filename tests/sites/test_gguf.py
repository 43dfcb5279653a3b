# SPDX-License-Identifier: Apache-2.0
"""A GGUF written on the spot becomes a plain Llama that can be saved; other files are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.cli import main
from heatfhe.errors import ConfigError
from heatfhe.sites import load_gguf, prepare
from tests.gpt2_tiny import worst
from tests.llama_tiny import random_tokens, tiny_llama

gguf = pytest.importorskip("gguf", reason="needs the gguf extra")

SHAPE, VOCABULARY = (8, 2, 8, 96), 258
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def written(path: Path, model: Any, kind: str = "llama") -> Path:
    """The model as llama.cpp stores it: queries and keys with the two halves of a head interleaved."""
    config, w = model.config, gguf.GGUFWriter(path, kind)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_rope_freq_base(500.0)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_vocab_size(config.vocab_size)
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    w.add_tokenizer_model("gpt2")
    w.add_token_list(["<|endoftext|>", *letters, letters[0] + letters[1]])
    w.add_token_types([3] + [1] * (len(letters) + 1))
    w.add_token_merges([f"{letters[0]} {letters[1]}"])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    for name, tensor in model.state_dict().items():
        values, stem = tensor.numpy(), name.rpartition(".")[0]
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
            stem.rpartition(".")[2]
        )
        if heads is not None:
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if stem.startswith("model.layers."):
            _, _, layer, rest = stem.split(".", 3)
            stored = f"blk.{layer}.{NAMES[rest]}"
        else:
            stored = OUTER[stem]
        w.add_tensor(f"{stored}.weight", np.ascontiguousarray(values))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.fixture(scope="module")
def parent() -> Any:
    theta = {"rope_theta": 500.0, "rope_type": "default"}
    return tiny_llama(0, SHAPE, vocab_size=VOCABULARY, rope_parameters=theta)


def test_it_is_the_model_it_was_made_from_and_can_be_saved(parent: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.gguf", parent)
    model, tokenizer = load_gguf(path)
    assert type(model).__name__ == "LlamaForCausalLM"
    tokens = random_tokens(rows=2, vocabulary=VOCABULARY)
    with torch.no_grad():
        assert worst(model(tokens).logits, parent(tokens).logits) < 1e-5
    assert len(tokenizer("cat")["input_ids"]) == 3
    assert prepare(model).architecture.shape.context == parent.config.max_position_embeddings
    assert main(["prepare", str(path), "-o", str(tmp_path / "plain"), "--quiet"]) == 0
    again = type(parent).from_pretrained(tmp_path / "plain")
    with torch.no_grad():
        assert worst(again(tokens).logits, parent(tokens).logits) < 1e-5
    assert (tmp_path / "plain" / "tokenizer.json").is_file()


def test_other_files_are_refused_by_name(parent: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="a GGUF of the architecture 'qwen2' is not supported; have: llama"):
        load_gguf(written(tmp_path / "other.gguf", parent, "qwen2"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(8))
    with pytest.raises(ConfigError, match="is not a GGUF file, or cut short"):
        load_gguf(tmp_path / "broken.gguf")
    assert main(["calibrate", str(tmp_path / "other.gguf"), "-o", str(tmp_path / "c.json")]) != 0
    assert "unpack it first: heat prepare" in " ".join(capsys.readouterr().err.split())
