# SPDX-License-Identifier: Apache-2.0
"""The embedded argmax schedules under refresh noise: free running on the clear engine says what the circuit says."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from heatfhe.approx import gumbel_noise
from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Conversation, Runner
from heatfhe.engine.clear import BootstrapNoise
from heatfhe.planning import plan
from heatfhe.planning.params import preset

STEPS, TEMPERATURE = 8, 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["heat", "calibrated"])
def test_noise_of_1e_5_of_a_refreshs_bound_changes_no_token(kind: str, sampled: bool) -> None:
    """A hundred times a real set's noise; with the powers 9, 3, 3, 3, 7 a hundredth of it lost most tokens."""
    circuit = Circuit.load(default_circuit(kind))
    made = plan(circuit, preset("insecure-native-12"), programs=("generate", "prompt", "sample"))
    tokenizer = Tokenizer.from_str(circuit.tokenizer["tokenizer.json"].decode())
    for text in ("Once upon a time", "The little dog"):
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        rng = np.random.default_rng(7)
        size = circuit.shape.vocabulary
        noise = [gumbel_noise(rng, size, TEMPERATURE) if sampled else np.zeros(size) for _ in range(STEPS)]
        wanted = list(prompt)
        for row in noise:
            wanted.append(int((circuit.run(wanted)[-1] + row).argmax()))
        for floor in (1e-6, 1e-5):
            engine = ClearEngine(made.params, noise=BootstrapNoise(floor=floor), rng=np.random.default_rng(1))
            decode = Conversation(Runner(made, engine, made.source(circuit)))
            rows = [[engine.value(made.packing.pack_residual(circuit.folded.token[t]))] for t in prompt]
            for x in rows[:-1]:
                decode.prompt(x)
            hot = []
            for k, row in enumerate(noise):
                x = rows[-1] if k == 0 else None
                parts = [engine.value(part) for part in made.packing.pack_vocabulary(row)]
                values = decode.sample(parts, x) if sampled else decode.generate(x)
                hot.append(made.packing.unpack_vocabulary([v.slots for v in values]).real)
            assert [int(h.argmax()) for h in hot] == wanted[len(prompt) :], f"{text} at {floor:g}"
            assert min(float(h.max()) for h in hot) > 0.5  # a near tie shares
