"""Settings of a fleet: section `[fleet]` of `fleet.toml`, environment `FRAMEFLEET_FLEET_...`, flags.

A revision is one value of FleetSettings; whatever of it changes is put into effect by starting replicas anew.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]
Switch = Literal["auto", "on", "off"]


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flags of `vllm serve`, as measured to suit captioning. Whatever else it knows goes into `args`."""

    dtype: str = "auto"
    """Of the weights."""
    max_model_len: Annotated[int, Meta(ge=0)] = 16384
    """Tokens of one request, frames and answer. Longer ones are refused. 0: the model's own."""
    max_num_seqs: Annotated[int, Meta(ge=0)] = 256
    """Requests that generate together. 0: vLLM's default."""
    max_num_batched_tokens: Annotated[int, Meta(ge=0)] = 32768
    """Tokens of one step; a clip's frames must fit. 0: vLLM's default."""
    gpu_memory_utilization: Annotated[float, Meta(ge=0, le=1)] = 0.85
    """Share of the GPU's memory, divided among its replicas; the rest is for decoding. 0: vLLM's default."""
    api_server_count: _Count = 4
    """API server processes: they take requests, load clips and prepare pixels."""
    renderer_num_workers: _Count = 4
    """Threads for that in each of them."""
    async_scheduling: bool = True
    """Plan the next step while one runs."""
    mm_processor_cache_gb: Annotated[float, Meta(ge=0)] = 0.0
    """Prepared clips kept. Useless where each clip comes once, and not safe with several renderer workers."""
    mm_ipc_gpu_memory_gb: Annotated[float, Meta(ge=0)] = 0.0
    """GPU memory for frames that vLLM's own GPU decoders make. 0: none; our decode service keeps its own account."""
    media_io_kwargs: dict[str, Any] = {}
    """As vLLM's: `{video = {fps = 2}}`."""
    mm_processor_kwargs: dict[str, Any] = {}
    """As vLLM's: `{size = {shortest_edge = 65536, longest_edge = 9437184}}`."""


class EmbeddedServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flags of our own engine server, `python -m framefleet.serve.openai_app`."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`."""
    dtype: str = "auto"
    """`auto`, `float32`, `bfloat16`, `float16`."""
    max_batch: _Count = 8
    """Questions generated together."""
    num_threads: Annotated[int, Meta(ge=0)] = 0
    """CPU threads of the model; 0: the replica's share of the cores."""
    decode_workers: Annotated[int, Meta(ge=0)] = 0
    """Decode processes of the replica; 0: its share of the cores."""


class CanarySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new revision's first replica must hold against the old ones."""

    clips: tuple[str, ...] = ()
    """Clips it is asked about; empty: four of the sample clips. Your own tell more."""
    prompt: str = "Describe this video."
    """What it is asked, with temperature 0."""
    max_tokens: _Count = 48
    """Of an answer."""
    max_difference: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of words in which its captions may differ from the old ones, on average. 1: any caption will do."""
    max_ttft_ratio: Annotated[float, Meta(ge=1)] = 1.5
    """Its median time to the first token, over the old one's ..."""
    ttft_slack_s: Annotated[float, Meta(ge=0)] = 2.0
    """... and so many seconds more."""


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one model on one host."""

    model: str = "dashcam_tiny"
    """`dashcam_tiny` (bundled), a local folder, or a hub id."""
    served_model_name: str = ""
    """The name that clients use; empty: the model as given."""
    engine: Literal["auto", "vllm", "embedded"] = "auto"
    """`auto`: `embedded` for the bundled model; else vLLM where there is one, else `embedded`."""
    replicas: Literal["auto"] | _Count = "auto"
    """In all, spread over the GPUs; `auto`: one per GPU, or one where there is no GPU."""
    replicas_per_gpu: _Count = 1
    """With `replicas = "auto"`."""
    python: str = ""
    """Interpreter of the engine's environment (with framefleet installed, for our decoder); empty: this one."""
    command: tuple[str, ...] = ()
    """What stands for `vllm` where an interpreter is not enough: `["docker", "exec", "v", "vllm"]`."""
    args: tuple[str, ...] = ()
    """More flags of the engine's server, passed on as they are, after all others."""
    env: dict[str, str] = {}
    """Environment of every replica, over this process's own."""
    allowed_local_media_path: str = ""
    """Folder under which clients may name clips by `file:` URL; empty: none."""
    decoder: Literal["framefleet", "vllm"] = "framefleet"
    """Who decodes in vLLM: our loader, or vLLM's own (then `vllm.media_io_kwargs` says which)."""
    decode_service: Switch = "auto"
    """One decoding process per GPU that all its API servers share. `auto`: with vLLM and our decoder."""
    decode_args: tuple[str, ...] = ()
    """More flags of the decode service, `--budget "4 GiB"` for one."""
    mps: Switch = "auto"
    """CUDA MPS, so that decoding and the model run on the GPU at once. `auto`: with vLLM where it can be started."""
    cores: Literal["shared", "split"] = "shared"
    """`split`: each GPU's processes get CPU cores of their own, near the GPU."""
    start_s: _Seconds = 900.0
    """From a replica's start to its first answer; then it is killed and started again."""
    drain_s: _Seconds = 600.0
    """What is in flight may take so long to end before a replica is stopped all the same."""
    stop_s: _Seconds = 20.0
    """From the request to end to the kill."""
    lost_s: Annotated[float, Meta(ge=0)] = 20.0
    """A replica that answers no more may come back for so long; then it is killed and started again."""
    restart_wait_s: _Seconds = 1.0
    """Before a replica that died is started again; doubles with each death in a row, one minute at most."""
    max_restarts: Annotated[int, Meta(ge=0)] = 5
    """Deaths in a row without having been ready; then it stays down until `framefleet fleet restart`."""
    vllm: VllmSettings = VllmSettings()
    embedded: EmbeddedServerSettings = EmbeddedServerSettings()
    canary: CanarySettings = CanarySettings()
