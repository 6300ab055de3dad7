"""A checkpoint into memory: tokenizer, weights, device and dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForImageTextToText, AutoTokenizer

from framefleet.engine.embedded.checkpoint import open_checkpoint
from framefleet.engine.embedded.families import family_of
from framefleet.engine.embedded.generation import Writer
from framefleet.engine.embedded.wire import Load
from framefleet.errors import ConfigError, DeviceError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_writer(load: Load) -> tuple[Writer, dict[str, str]]:
    """The model of `load`, ready, and the versions of what runs it.

    `auto` is the first GPU if there is one; dtype `auto` is the checkpoint's on a GPU and float32 on the CPU, where
    rows of one batch then get the words that they would get alone. Raises ConfigError and DeviceError.
    """
    torch.set_num_threads(load.num_threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    checkpoint = open_checkpoint(load.model)
    device = _device(load.device)
    tokenizer, model = _files(checkpoint.folder, _dtype(load.dtype, device))
    versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    return Writer(model.to(device).eval(), tokenizer, family_of(checkpoint, tokenizer)), versions


def _files(folder: Path, dtype: torch.dtype | str) -> tuple[Any, Any]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return tokenizer, AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except Exception as error:  # several libraries, each with errors of its own
        raise ConfigError(
            "the model's files cannot be loaded", given=f"{folder} ({type(error).__name__}: {error})"
        ) from error


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceError("no CUDA device is visible", given=name, remedy="device cpu, or framefleet doctor")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name == "auto":
        return "auto" if device.type == "cuda" else torch.float32
    return _DTYPES[name]
