# SPDX-License-Identifier: Apache-2.0
"""HEAT fine-tuning: counts and weights learned together, in three phases. torch."""

from heatfhe.training.calibrations import odd_windows
from heatfhe.training.data import Windows, cut, load_windows, pack, read_documents, windows_of
from heatfhe.training.diagnose import Prices, Sizes, first_to_leave, noise_tap
from heatfhe.training.images import Images
from heatfhe.training.journal import read_log
from heatfhe.training.loop import Stopped
from heatfhe.training.losses import Terms, distillation_loss, task_loss, window_losses
from heatfhe.training.memory import Memory, check_memory, training_memory
from heatfhe.training.recipe import Phase, Recipe
from heatfhe.training.recipes import ABLATIONS, RECIPES, ablation, fitting, recipe
from heatfhe.training.train import Trained, train

__all__ = [
    "ABLATIONS",
    "RECIPES",
    "Images",
    "Memory",
    "Phase",
    "Prices",
    "Recipe",
    "Sizes",
    "Stopped",
    "Terms",
    "Trained",
    "Windows",
    "ablation",
    "check_memory",
    "cut",
    "distillation_loss",
    "first_to_leave",
    "fitting",
    "load_windows",
    "noise_tap",
    "odd_windows",
    "pack",
    "read_documents",
    "read_log",
    "recipe",
    "task_loss",
    "train",
    "training_memory",
    "window_losses",
    "windows_of",
]
