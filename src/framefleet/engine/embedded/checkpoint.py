"""A model on disk: which folder it is, what family, what its processor configuration says. No torch here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framefleet.errors import ConfigError, MissingLibrary

BUNDLED = "dashcam_tiny"
FAMILIES = ("qwen3_vl", "qwen2_5_vl", "smolvlm")
"""`model_type` of the configurations that can be run here."""
NOTICE_FILE = "framefleet.json"
"""Beside a model of limited knowledge: `{"notice": ..., "min_mean_logprob": ...}`."""
_PATTERNS = ["*.json", "*.jinja", "*.safetensors", "*.txt", "*.model"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with config, processor configuration, tokenizer and weights."""

    folder: Path
    config: dict[str, Any]
    video: dict[str, Any]
    """The video processor's configuration (the image processor's where there is no other)."""
    notice: dict[str, Any]

    @property
    def family(self) -> str:
        """`config.model_type`, one of FAMILIES."""
        return str(self.config["model_type"])

    @property
    def revision(self) -> str:
        """Digest of the model's files (hex): other weights under the same name are another model.

        Of large files the size and 64 blocks are read: training changes every part of them.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in sorted(p for pattern in _PATTERNS for p in self.folder.glob(pattern)):
            digest.update(f"{path.name}:{path.stat().st_size}:".encode())
            digest.update(_sampled(path))
        return digest.hexdigest()


def open_checkpoint(model: str) -> Checkpoint:
    """The checkpoint named `dashcam_tiny`, in a local folder, or of a hub id (from the cache, else downloaded).

    Raises ConfigError when there is none or its family is unknown, MissingLibrary for a hub id without the library.
    """
    folder = _folder(model)
    config = _read(folder / "config.json")
    if config is None:
        raise ConfigError("no model there", given=str(folder), allowed="a folder with config.json and weights")
    if config.get("model_type") not in FAMILIES:
        raise ConfigError(
            "the embedded engine does not run this family of models",
            given=f"{config.get('model_type')!r} ({model})",
            allowed=", ".join(FAMILIES),
            remedy="install vLLM (or name its interpreter, FRAMEFLEET_FLEET_PYTHON), or use --endpoint",
        )
    return Checkpoint(folder, config, _video_config(folder), _read(folder / NOTICE_FILE) or {})


def _sampled(path: Path) -> bytes:
    """The whole of a small file; 64 blocks of 4 KiB, evenly spread, of a large one."""
    num_bytes, block = path.stat().st_size, 4096
    with path.open("rb") as stream:
        if num_bytes <= 64 * block:
            return stream.read()
        pieces = []
        for number in range(64):
            stream.seek((num_bytes - block) * number // 63)
            pieces.append(stream.read(block))
        return b"".join(pieces)


def bundled_folder() -> Path:
    """Where the bundled model's files are in the package."""
    return Path(__file__).parents[2] / "models" / BUNDLED


def _folder(model: str) -> Path:
    if model == BUNDLED:
        return bundled_folder()
    if Path(model).is_dir():
        return Path(model)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ConfigError("no such model", given=repr(model), allowed=f"{BUNDLED}, a folder, or a hub id like ORG/NAME")
    return _from_hub(model)


def _from_hub(model: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingLibrary(
            "huggingface_hub is not installed", given=model, remedy="pip install 'framefleet[embedded]'"
        ) from error
    try:
        return Path(snapshot_download(model, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            "the model is not in the cache and cannot be fetched from the hub",
            given=f"{model} ({type(error).__name__})",
            remedy="check the name and the network, or give a local folder",
        ) from error


def _video_config(folder: Path) -> dict[str, Any]:
    """As transformers 5 looks for it: nested in processor_config.json, else the older files of their own."""
    nested = (_read(folder / "processor_config.json") or {}).get("video_processor")
    if nested:
        return dict(nested)
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        if found := _read(folder / name):
            return found
    raise ConfigError(
        "the model has no processor configuration",
        given=str(folder),
        allowed="processor_config.json, video_preprocessor_config.json or preprocessor_config.json",
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError("a file of the model cannot be read", given=f"{path}: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError("a file of the model is not a JSON object", given=str(path))
    return loaded
