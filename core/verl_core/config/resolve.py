"""One look at every leaf of a composed config: what is missing, what cannot be resolved, what is secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationValidationError, OmegaConfBaseException

from ..errors import ConfigError
from .environment import Asked
from .findings import where
from .secrets import MASK, Path, secret_leaf, secret_name

_MISSING = {
    "model.actor.path": "give the folder of a model, e.g. --set model.actor.path=DIR",
    "data.train_files": "give the data files, e.g. --set data.train_files=[FILE.jsonl]",
}


@dataclass(slots=True)
class Look:
    """Collects while it walks; ``saved`` configs may hold masks. Messages never show a value."""

    asked: Asked
    places: Mapping[str, str]
    saved: bool = False
    errors: list[ConfigError] = field(default_factory=list)
    secrets: set[Path] = field(default_factory=set)
    secret_texts: set[str] = field(default_factory=set)  # those values, and the variables that they are made of

    def at(self, node: DictConfig | ListConfig, path: Path = ()) -> None:
        """Look at all leaves below a node; those behind an interpolation count where it stands."""
        for key in range(len(node)) if isinstance(node, ListConfig) else list(node):
            here = (*path, key)
            name = ".".join(map(str, here))
            if OmegaConf.is_missing(node, key):
                listed = any(isinstance(part, int) for part in here)
                remedy = "write it into the list" if listed else f"set it: --set {name}=…"
                self._wrong(name, "a value is missing", _MISSING.get(name, remedy))
                continue
            self.asked.clear()
            try:
                value = node[key]
            except OmegaConfBaseException as error:
                if self.saved and self.asked.unset and _masked(node, key):
                    self.secrets.add(here)  # of a run that is only looked at: whoever looks need not have its secrets
                    continue
                self._wrong(name, *_reason(error, self.asked))
                continue
            if isinstance(value, DictConfig | ListConfig):
                self.at(value, here)
            elif value == MASK and not self.saved:
                self._wrong(name, "a masked secret", "write ${oc.env:NAME} and set the variable")
            elif value == MASK or secret_leaf(here, value, self.asked.names):
                self.secrets.add(here)
                if not _word(here, value, self.asked):
                    self.secret_texts |= {str(value), *self.asked.values}

    def _wrong(self, key: str, what: str, remedy: str) -> None:
        self.errors.append(
            ConfigError(what, where=where(key, self.places, shown=key.replace(".options.", ".")), remedy=remedy)
        )


def _masked(node: DictConfig | ListConfig, key: str | int) -> bool:
    """Put the mask for a value that cannot be resolved; False where its type takes no text."""
    try:
        OmegaConf.update(node, str(key), MASK)
    except OmegaConfBaseException:
        return False
    return True


def _word(path: Path, value: object, asked: Asked) -> bool:
    """Whether a value is masked only for its block's name, and is a plain word that other texts hold, too."""
    return str(value).isalpha() and len(str(value)) < 16 and not asked.names and not secret_name(str(path[-1]))


def _reason(error: OmegaConfBaseException, asked: Asked) -> tuple[str, str]:
    """What and remedy; OmegaConf's own messages may show a value."""
    if asked.unset:
        name = min(asked.unset)
        remedy = f"export {name}=…, or put it into a .env file beside the config"
        return f"environment variable {name} is not set", remedy
    if isinstance(error, InterpolationKeyError):
        return "refers to a key that does not exist", "correct the ${…}"
    if isinstance(error, InterpolationValidationError):
        source = f"the value of {min(asked.names)}" if asked.names else "what ${…} refers to"
        return f"{source} has a wrong type", "correct the value"
    return f"cannot be resolved ({type(error).__name__})", "correct the ${…}"
