"""The plugin's logger: a child of vLLM's, so that its words are written where vLLM's are, whenever that is set up."""

from __future__ import annotations

import logging

log = logging.getLogger("vllm.framefleet")
