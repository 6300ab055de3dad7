"""framefleet's decoder inside vLLM's API server, as a plugin of vLLM (entry point `vllm.general_plugins`).

    vllm serve MODEL --media-io-kwargs '{"video": {"video_backend": "framefleet", "model": "MODEL"}}'

or, for every video without naming it, `FRAMEFLEET_TAKE_OVER=1 FRAMEFLEET_MODEL=MODEL vllm serve MODEL`.
"""

from __future__ import annotations


def register() -> None:
    """What vLLM calls in each of its processes, some more than once. Free of effect where vLLM is too old.

    Raises ConfigError when taking over was asked for and FRAMEFLEET_MODEL names no model that can be read.
    """
    from framefleet.vllm_plugin.registration import register_in_vllm

    register_in_vllm()
