# SPDX-License-Identifier: Apache-2.0
"""A decoder's token as recorded operations: which stages each program runs, and how they join."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heatfhe.approx import inverse_sqrt, rms_norm
from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.pack import Packing, PeriodicMlp, from_heads, from_hidden
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.program import ProgramName
from heatfhe.planning.programs.attention import attention
from heatfhe.planning.programs.builder import Builder
from heatfhe.planning.programs.mlp import activation, gate, skewed, way_back
from heatfhe.planning.programs.vocabulary import argmax, embedding, head
from heatfhe.planning.recorder import Recorder, Traced
from heatfhe.planning.recording import Recording, finish
from heatfhe.planning.scales import noise_bound
from heatfhe.planning.vectors import Position
from heatfhe.planning.weights import Dense
from heatfhe.stages import (
    Activation,
    Attention,
    Embed,
    Gate,
    Head,
    Linear,
    Norm,
    Patches,
    Residual,
    Stage,
    of,
    readers,
    writers,
)

MLPS = ("A", "B")


def record(
    circuit: Circuit,
    packing: Packing,
    program: str,
    *,
    reach: float = 1.0,
    halve: bool = True,
    contract: bool = True,
    mlp: str = "A",
    tight: bool = False,
) -> Recording:
    """Record one program. ``halve`` allows complex plaintexts, ``contract`` makes every polynomial one node.

    ``mlp`` is the variant of the MLP: A spends a level before the activation, B after it and one the norm can spare.
    ``tight`` carries sums and reciprocals of softmaxes as large as their counts allow, where the default looks at their
    domains alone, and the residual stream beyond the reach: the same function with more bits.

    ``reach`` is the magnitude a bootstrap takes; values are carried at sizes that suit it.
    """
    known = [name for name in ProgramName if name not in (ProgramName.PREFILL, ProgramName.CLASSIFY)]
    if program not in known:
        raise ConfigError(f"unknown program {program!r}; have {', '.join(known)}")
    if mlp not in MLPS:
        raise ConfigError(f"unknown MLP variant {mlp!r}; have {', '.join(MLPS)}")
    if mlp == "B" and not PeriodicMlp(packing=packing, halve=halve).fits:
        hidden = packing.shape.hidden
        raise PlanError(f"MLP variant B: hidden {hidden} on {packing.n} slots, width {packing.D}; use variant A")
    check_layouts(circuit.stages)
    return finish(_run(Builder(circuit, packing, reach, halve, contract, mlp, tight), ProgramName(program)))


# Between which stages a linear one stands, and so which layouts it leads from and to; a residual reads the branch.
_INTO, _BACK = (Attention, Activation, Gate), (Residual,)
_PATHS = {Norm: _INTO, Attention: _BACK, Activation: _BACK, Gate: _BACK}


def check_layouts(stages: Sequence[Stage]) -> None:
    """Raise PlanError, naming the stage, where a value would meet a stage that knows no layout for it."""
    made, stream = writers(stages), (Embed, Patches, Residual)
    for stage in stages:
        before = [type(made[value]) for value in stage.inputs]
        if isinstance(stage, Linear):
            after = [type(reader) for reader in readers(stages, stage.writes)]
            fits = bool(after) and all(reader in _PATHS.get(before[0], ()) for reader in after)
        elif isinstance(stage, (Attention, Activation)):
            fits = all(kind is Linear for kind in before)
        else:
            wanted = {
                Norm: (stream,),
                Gate: ((Activation,), (Linear,)),
                Residual: (stream, (Linear,)),
                Head: ((Norm,),),
            }
            fits = all(kind in kinds for kind, kinds in zip(before, wanted.get(type(stage), ())))
        if not fits:
            sources = " and ".join(kind.__name__.lower() for kind in before)
            raise PlanError(f"{stage.label}: no layout of slots is known for it where it reads {sources}")


def _run(b: Builder, program: ProgramName) -> Recorder:
    r, p = b.r, b.p
    (embed,) = of(b.circuit.stages, Embed)
    first, positions = embed.writes, embed.position is not None
    size = b.bound(first) * (2 if positions else 1)  # a token alone may exceed token plus position
    if program is ProgramName.EMBED:
        hot = r.input("token", period=p.V, bound=1.0, parts=p.vocabulary_parts)
        r.output("x", r.assume(embedding(b, hot), size))
        return r
    values: dict[str, Traced] = {}
    with r.scope("x", "embedding"):
        x = r.input("x", period=p.D, bound=size)
        values[first] = r.assume(x + Public.of(Position()), b.bound(first)) if positions else x
    for stage in b.circuit.stages[1:]:
        if isinstance(stage, Norm):
            values[stage.writes] = norm(b, stage, values[stage.reads])
        elif isinstance(stage, Attention):
            values[stage.writes] = attention(b, stage, values)
        elif isinstance(stage, Activation):
            values[stage.writes] = activation(b, stage, values)
        elif isinstance(stage, Gate):
            values[stage.writes] = gate(b, stage, values)
        elif isinstance(stage, Residual):
            values[stage.writes] = _residual(b, stage, values)
        elif isinstance(stage, Head):
            if program is ProgramName.PROMPT:
                break
            logits = head(b, values[stage.reads], centred=program is not ProgramName.LOGITS)
    if program is ProgramName.PROMPT:
        return r
    if program is ProgramName.LOGITS:
        r.output("logits", logits)
        return r
    if program is ProgramName.SAMPLE:
        with r.scope("noise", "argmax"):
            most = noise_bound(b.circuit)
            noise = r.input("noise", period=p.V, bound=most, parts=p.vocabulary_parts)
            noisy = logits + noise * b.scales.logits
            logits = r.assume(noisy, (2 * b.bound("logits") + most) * b.scales.logits)
    hot = argmax(b, logits, centred=program is ProgramName.GENERATE)
    r.output("token", hot)
    r.output("next", r.assume(embedding(b, hot), size))
    return r


def norm(
    b: Builder,
    stage: Norm,
    x: Traced,
    stride: int = 1,
    *,
    gather: Callable[[Traced], Traced] = lambda z: z,
    scatter: Callable[[Traced], Traced] = lambda y: y,
) -> Traced:
    """A norm over entries that lie ``stride`` slots apart. ``gather`` puts the sums of all ciphertexts into one, where
    the root is taken, and ``scatter`` brings each its own."""
    r, c, scale = b.r, b.circuit.calibration.norms[stage.name], b.scales.norms[stage.name]
    fit = c.fit.scaled(scale.square)

    def sum_of_squares(v: Traced) -> Traced:
        with r.group():
            z = gather(r.sum_over(v * v, stride, b.p.D, period=stride)) * scale.square_times
            z = z + c.width * c.eps * scale.square
        r.weigh(v, (fit.lo / scale.square_times / b.p.D) ** 0.5)
        return r.domain(z, fit.lo, fit.hi)

    def inverse_root(z: Traced) -> Traced:
        y = r.weigh(r.last(inverse_sqrt(z, fit, c.goldschmidt_count, c.newton_count, gain=scale.gain)))
        return scatter(y)

    with r.scope(stage.name, "layernorm"):
        skew = b.mlp is not None and _feeds_mlp(b, stage)
        moved = skewed(b, x) if skew else x
        y = rms_norm(moved, sum_of_squares=lambda _: sum_of_squares(x), inverse_root=inverse_root)
        y = y * scale.result_times
        y.facts.refreshable = not y.facts.complex
        return r.assume(y, b.bound(stage.writes) * scale.result)


def _feeds_mlp(b: Builder, stage: Norm) -> bool:
    into = [s.label in b.source.divisors for s in readers(b.circuit.stages, stage.writes)]
    if any(into) and not all(into):
        raise PlanError(f"{stage.name}: the MLP's variant B wants a norm of its own; use variant A")
    return any(into)


def _residual(b: Builder, stage: Residual, values: dict[str, Traced]) -> Traced:
    """The stream plus the projection that closes a branch."""
    r, p = b.r, b.p
    linear = b.linear(stage.branch)
    branch = values[linear.reads]
    from_attention = isinstance(b.made[linear.reads], Attention)
    parts = 1 if from_attention else p.hidden_parts
    with r.scope(linear.name, "linear"):
        if b.mlp is not None and not from_attention:
            y = way_back(b, linear.name, branch)
        else:
            y = _project(b, linear.name, branch, parts, from_attention)
        y.facts.period = p.D
        stream = values[stage.reads]
        if stage.reads == b.circuit.stages[0].writes:
            stream = stream * b.scales.residual
        return r.assume(stream + y, b.bound(stage.writes) * b.scales.residual)


def _project(b: Builder, name: str, branch: Traced, parts: int, from_attention: bool) -> Traced:
    """I -> P: the output projection, or the MLP's way back in variant A.

    The attention leaves half of the copies empty; filling them and making the complex input is one set of rotations.
    """
    r, p = b.r, b.p
    with r.group():
        total: Traced | None = None
        for part in range(parts):
            weight = Dense(name, part if parts > 1 else None)
            product = (from_heads if from_attention else from_hidden)(weight, p, halve=b.halve)
            x = r.select(branch, part)
            x = b.doubled(x, -p.Hp * p.t // 2, product) if from_attention and p.t > 1 else b.halved(x, product)
            z = r.linear(x, product, period=p.n)
            total = z if total is None else total + z
        assert total is not None
        return b.shifted(r.sum_over(b.real_part(total, product), p.D, p.t), Dense(name))
