# SPDX-License-Identifier: Apache-2.0
"""The stages a model is made of. A stage reads named values and writes one; it owns no numbers, only their names.

A stage knows which values it reads, which tensors it computes with, how wide all of them are, and which solvers iterate
in it. Whoever describes, prepares, calibrates, folds, runs or plans a model dispatches on these types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Union, get_args

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError, DataError, FileFormatError
from heatfhe.records import FamilyName

Sizes = Mapping[str, tuple[int, ...]]
LARGEST = 1 << 24  # of any size of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The public size of a model. ``context`` is the longest sequence, prompt and answer together."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    context: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 1 <= getattr(self, name) <= LARGEST:
                raise ConfigError(f"shape: {name} must lie in [1, {LARGEST}], got {getattr(self, name)}")
        if self.width % self.heads:
            raise ConfigError(f"shape: width {self.width} is not a multiple of {self.heads} heads")

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class Needs:
    """What a stage asks for: the width of each value it reads and the size of each tensor; and the width it writes."""

    inputs: tuple[int, ...]
    tensors: Sizes
    width: int


class _Stage:
    """What all stages share. Widths and sizes are names of a Shape's fields, by the stage's field they belong to."""

    __slots__ = ()
    families: ClassVar[tuple[FamilyName, ...]] = ()  # of the solvers that iterate in it
    solved: ClassVar[tuple[str, ...]] = ()  # what goes into its approximations and comes out: taps see name/part
    _values: ClassVar[dict[str, str]] = {"reads": "width"}
    _tensors: ClassVar[dict[str, tuple[str, ...]]] = {}
    _width: ClassVar[str] = "width"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values it reads."""
        return tuple(getattr(self, field) for field in self._values)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors it computes with."""
        return tuple(name for field in self._tensors if (name := getattr(self, field)) is not None)

    @property
    def label(self) -> str:
        """Its name, or its kind where there is one of it alone."""
        return getattr(self, "name", type(self).__name__.lower())

    def needs(self, shape: Shape, given: Sequence[int], held: Sizes) -> Needs:
        """What it asks for in a model of this shape, where values of these widths are given and these tensors held."""
        sizes = {
            name: tuple(getattr(shape, side) for side in sides)
            for field, sides in self._tensors.items()
            if (name := getattr(self, field)) is not None
        }
        inputs = tuple(getattr(shape, width) for width in self._values.values())
        return Needs(inputs, sizes, getattr(shape, self._width))


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(_Stage):
    """Token rows, and position rows added to them where there are any. Written to the residual stream."""

    _values: ClassVar[dict[str, str]] = {}
    _tensors: ClassVar[dict[str, tuple[str, ...]]] = {
        "token": ("vocabulary", "width"),
        "position": ("context", "width"),
    }
    writes: str
    token: str
    position: str | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """How an image is cut: its channels, height and width, and the height and width of a patch, which divide those."""

    image: tuple[int, int, int]
    patch: tuple[int, int]

    def __post_init__(self) -> None:
        sizes = self.image[1:], self.patch
        if min(*self.image, *self.patch) < 1 or any(side % part for side, part in zip(*sizes)):
            raise ConfigError(
                f"patches of {_by(self.patch)} pixels do not tile an image of {_by(self.image[1:])}; use an image_size "
                "that is a multiple of the patch_size"
            )

    @property
    def rows(self) -> int:
        """Rows an image makes: the class token, and one for each patch."""
        return 1 + math.prod(side // part for side, part in zip(self.image[1:], self.patch))

    def checked(self, images: Any) -> NDArray[np.float64]:
        """Pixels (..., channels, height, width), or the reason why they are not such."""
        pixels = np.asarray(images, dtype=np.float64)
        if pixels.shape[-3:] != self.image:
            found = _by(pixels.shape[-3:]) if pixels.ndim >= 3 else f"an array of shape {pixels.shape}"
            raise DataError(
                f"an image of {found}, the model takes {_by(self.image)} (channels, height, width); resize it"
            )
        if not np.isfinite(pixels).all():
            raise DataError("an image holds pixels that are not finite; use numbers")
        return pixels

    def cut(self, images: Any) -> NDArray[np.float64]:
        """Images (..., channels, height, width) as flat patches (..., rows - 1, channels * height * width of one)."""
        pixels = self.checked(images)
        (channels, height, width), (tall, wide) = self.image, self.patch
        split = pixels.reshape(*pixels.shape[:-3], channels, height // tall, tall, width // wide, wide)
        moved = np.moveaxis(split, (-4, -2), (-5, -4))  # (..., down, across, channels, tall, wide)
        return np.ascontiguousarray(moved.reshape(*pixels.shape[:-3], self.rows - 1, channels * tall * wide))

    def project(self, images: Any, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows (..., rows, width) of images by the matrix of patches (pixels of one, width), without positions.

        That of the class token is zero: all of it is in the positions, as is the bias (``circuit.Folded``).
        """
        patches = self.cut(images) @ matrix
        return np.concatenate([np.zeros((*patches.shape[:-2], 1, patches.shape[-1])), patches], axis=-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches(_Stage):
    """Rows of an image: a class token, then a linear map of every patch; a position's row is added to each of them.

    ``image`` and ``patch`` are those of its ``grid``. ``weight`` is stored as the convolution it is in models, (width,
    channels, *patch); ``first`` is the class token.
    """

    _values: ClassVar[dict[str, str]] = {}
    _tensors: ClassVar[dict[str, tuple[str, ...]]] = {"weight": (), "bias": (), "first": (), "position": ()}
    writes: str
    weight: str
    bias: str
    first: str
    position: str
    image: tuple[int, int, int]
    patch: tuple[int, int]

    @property
    def grid(self) -> Grid:
        """How images are cut."""
        return Grid(self.image, self.patch)

    def needs(self, shape: Shape, given: Sequence[int], held: Sizes) -> Needs:
        """A row of positions for the class token and every patch."""
        rows, width = self.grid.rows, shape.width
        if rows != shape.context:
            raise ConfigError(
                f"an image of {_by(self.image[1:])} in patches of {_by(self.patch)} makes {rows} rows, the shape has a "
                f"context of {shape.context}; an image takes all of it"
            )
        whole = {self.weight: (width, self.image[0], *self.patch), self.bias: (width,)}
        return Needs((), whole | {self.first: (1, 1, width), self.position: (1, rows, width)}, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(_Stage):
    """Division by the root mean square; of a ``centred`` one (a layer norm) the mean is subtracted first.

    Its gain ``weight`` and shift ``bias`` are folded into the linear stages that read it.
    """

    families: ClassVar[tuple[FamilyName, ...]] = ("norm_goldschmidt", "norm_newton")
    solved: ClassVar[tuple[str, ...]] = ("z", "root")
    _tensors: ClassVar[dict[str, tuple[str, ...]]] = {"weight": ("width",), "bias": ("width",)}
    name: str
    reads: str
    writes: str
    weight: str
    eps: float
    bias: str | None = None
    centred: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Stage):
    """x @ weight + bias, weight stored (in, out), or (out, in) where ``transposed``.

    ``residual`` says that the output is added to the residual stream.
    """

    _tensors: ClassVar[dict[str, tuple[str, ...]]] = {"weight": (), "bias": ()}
    name: str
    reads: str
    writes: str
    weight: str
    bias: str | None = None
    residual: bool = False
    transposed: bool = False

    def needs(self, shape: Shape, given: Sequence[int], held: Sizes) -> Needs:
        """A matrix from what is given to as many columns as it holds."""
        size = held.get(self.weight, ())
        outer = (size[0] if self.transposed else size[-1]) if size else 0
        sizes = dict.fromkeys(self.tensors, (outer,))
        return Needs(
            tuple(given), sizes | {self.weight: (outer, *given) if self.transposed else (*given, outer)}, outer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(_Stage):
    """Attention through the approximated softmax called ``name``: of every row over the rows up to it or, where it is
    not ``causal``, over all.

    It reads queries, keys and values as one joined value or as three. ``key_value_heads`` of them (by default as many
    as ``heads``) serve several heads each. ``scale`` multiplies the scores; by default one over the root of the head
    width does. With ``rotary`` queries and keys are turned by their position: entry i of a head and the one half a head
    further on are a point in the plane, turned by position / rotary^(2 i / head width).
    """

    families: ClassVar[tuple[FamilyName, ...]] = ("softmax_init", "softmax_refine")
    solved: ClassVar[tuple[str, ...]] = ("scores", "sum", "sum2", "inverse")
    name: str
    reads: Union[str, tuple[str, str, str]]
    writes: str
    heads: int
    key_value_heads: int | None = None
    scale: float | None = None
    rotary: float | None = None
    causal: bool = True

    def __post_init__(self) -> None:
        if self.heads < 1 or self.cached < 1 or self.heads % self.cached:
            raise ConfigError(f"{self.name}: {self.heads} heads cannot share {self.cached} keys and values")
        if self.scale is not None and not 0.0 < self.scale < math.inf:
            raise ConfigError(f"{self.name}: a scale of scores must be positive and finite, got {self.scale:g}")
        if self.rotary is not None and not 1.0 < self.rotary < math.inf:
            raise ConfigError(f"{self.name}: rotary positions need a finite base above 1, got {self.rotary:g}")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values it reads."""
        return (self.reads,) if isinstance(self.reads, str) else self.reads

    @property
    def cached(self) -> int:
        """Heads of its keys and values."""
        return self.heads if self.key_value_heads is None else self.key_value_heads

    @property
    def shared(self) -> int:
        """Heads that each key and value serves."""
        return self.heads // self.cached

    def widths(self, head_width: int) -> tuple[int, int, int]:
        """Of queries, keys and values."""
        return self.heads * head_width, self.cached * head_width, self.cached * head_width

    def divisor(self, head_width: int) -> float:
        """What scores are divided by."""
        return math.sqrt(head_width) if self.scale is None else 1.0 / self.scale

    def needs(self, shape: Shape, given: Sequence[int], held: Sizes) -> Needs:
        """Queries, keys and values of whole heads."""
        if self.heads != shape.heads:
            raise ConfigError(f"{self.name}: has {self.heads} heads, the shape says {shape.heads}")
        if self.rotary is not None and shape.head_width % 2:
            raise ConfigError(f"{self.name}: rotary positions need an even head width, got {shape.head_width}")
        widths = self.widths(shape.head_width)
        return Needs((sum(widths),) if isinstance(self.reads, str) else widths, {}, shape.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(_Stage):
    """A fitted nonlinearity, entry by entry."""

    solved: ClassVar[tuple[str, ...]] = ("in",)
    _values: ClassVar[dict[str, str]] = {"reads": "hidden"}
    _width: ClassVar[str] = "hidden"
    name: str
    reads: str
    writes: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(_Stage):
    """An activated value times another, entry by entry."""

    _values: ClassVar[dict[str, str]] = {"reads": "hidden", "by": "hidden"}
    _width: ClassVar[str] = "hidden"
    reads: str
    by: str
    writes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual(_Stage):
    """Sum of the stream and a branch."""

    _values: ClassVar[dict[str, str]] = {"reads": "width", "branch": "width"}
    reads: str
    branch: str
    writes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(_Stage):
    """Logits over the vocabulary, or over labels: x @ weight.T + bias, weight stored (vocabulary, width).

    ``first`` says that the first row alone has logits: a class token's.
    """

    _tensors: ClassVar[dict[str, tuple[str, ...]]] = {"weight": ("vocabulary", "width"), "bias": ("vocabulary",)}
    _width: ClassVar[str] = "vocabulary"
    reads: str
    writes: str
    weight: str
    bias: str | None = None
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Argmax(_Stage):
    """Near one-hot of the largest logit."""

    _values: ClassVar[dict[str, str]] = {"reads": "vocabulary"}
    _width: ClassVar[str] = "vocabulary"
    reads: str
    writes: str


def turns(base: float, head_width: int, positions: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rotary positions: (cosine, sine), each (positions, head width): x turned is x cosine + half_away(x) sine."""
    angle = np.asarray(positions)[:, None] * float(base) ** (-np.arange(0, head_width, 2) / head_width)
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.concatenate([cosine, cosine], axis=-1), np.concatenate([-sine, sine], axis=-1)


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


Stage = Union[Embed, Patches, Norm, Linear, Attention, Activation, Gate, Residual, Head, Argmax]
STAGES: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Stage)}
_ALWAYS = "residual"  # files hold it even at its default


def stage_to_json(stage: Stage) -> dict[str, Any]:
    """Plain JSON form, its type under ``stage``; fields at their default are left out."""
    held = [f.name for f in fields(stage) if f.name == _ALWAYS or getattr(stage, f.name) != f.default]
    return {"stage": type(stage).__name__.lower(), **{name: getattr(stage, name) for name in held}}


def stage_from_json(body: dict[str, Any]) -> Stage:
    """Inverse of stage_to_json."""
    kind = STAGES.get(body.get("stage", ""))
    if kind is None:
        raise FileFormatError(f"unknown stage {body.get('stage')!r}; have {', '.join(STAGES)}")
    try:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items() if k != "stage"}
        made: Stage = kind(**values)
    except TypeError as err:
        raise FileFormatError(f"stage {body.get('stage')!r} has wrong fields: {err}") from err
    return made
