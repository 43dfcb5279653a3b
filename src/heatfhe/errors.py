# SPDX-License-Identifier: Apache-2.0
"""Every error heatfhe raises, as one tree; catching HeatError at the CLI is enough to print one good line.

    HeatError
    ├─ ConfigError             a value that can never work
    │  └─ MissingExtraError    an optional package is absent; names the extra
    ├─ SiteError               carries .site
    ├─ ObliviousError          a solver branched on data
    ├─ FileFormatError         a file is truncated, altered, of another kind or of an unknown version
    │  └─ ObjectError          an object of a store is lost, torn or changed; carries .sha256
    ├─ DataError               text or tokens that cannot be used for the work asked
    ├─ TrainingError           a run that cannot go on; names the site that left its domain first
    ├─ PlanError               no placement; says the smallest parameter change that would help
    ├─ EngineError
    │  ├─ MissingKeyError      rotation by 17 is not among the plan's keys
    │  └─ OutOfLevelsError     step 412 needs 2 levels, has 1
    ├─ WireError               version, digest or size does not match
    └─ DecryptError            implausible plaintext: a collapse

A message may hold shapes, levels, sites, sizes and calibrated bounds. It never holds a user's plaintext, tokens or key
bytes, and it ends with what to do.
"""

from __future__ import annotations


class HeatError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(HeatError):
    """A value that can never work."""


class MissingExtraError(ConfigError):
    """An optional package is absent."""

    def __init__(self, extra: str, *, needed_by: str) -> None:
        self.extra = extra
        super().__init__(f"{needed_by} needs an optional package; install it with: pip install 'heatfhe[{extra}]'")


class SiteError(HeatError):
    """Something is wrong at one site."""

    def __init__(self, site: str, message: str) -> None:
        self.site = site
        super().__init__(f"{site}: {message}")


class ObliviousError(HeatError):
    """A solver looked at its data: the server cannot, and must not, see it."""


class FileFormatError(HeatError):
    """A file is truncated, altered, of another kind, or of a version this release does not read."""


class ObjectError(FileFormatError):
    """An object of a store is not what was put there: lost, torn or changed. It is never used."""

    def __init__(self, sha256: str, name: str, what: str) -> None:
        self.sha256, self.name = sha256, name
        super().__init__(f"object {sha256} ({name}) {what}; what needs it must be made again, or brought back")


class DataError(HeatError):
    """Text or tokens that cannot be used for the work asked."""


class TrainingError(HeatError):
    """A training run that cannot go on."""


class PlanError(HeatError):
    """No legal placement exists; the message says the smallest change that would help."""


class EngineError(HeatError):
    """An engine could not execute a step."""


class MissingKeyError(EngineError):
    """A rotation, conjugation or relinearisation key is not in the key set."""


class OutOfLevelsError(EngineError):
    """A step needs more levels than its operand has left."""


class WireError(HeatError):
    """A message's version, digest or size does not match."""


class DecryptError(HeatError):
    """A decrypted value is implausible. Says which output, never its value."""
