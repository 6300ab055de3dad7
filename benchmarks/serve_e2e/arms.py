"""What is compared: the kinds of server that stand on every GPU, and the arms that are asked of them. Pure.

Several servers share a GPU, each with its own weights and a bounded KV cache, and only the one under test is asked:
so arms interleave trial by trial, without a restart between them. Where two arms differ only in the decoder that vLLM
uses, the request names it (`media_io_kwargs`), and they share one server.

vLLM 0.26.0 keeps one hardware decoder per API server whatever `hw_decoders` says (PYNVVIDEOCODEC_MAX_RETAINED_DECODERS,
multimodal/video.py; the option came with 0.27.1). More of them there means more API servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framefleet.serve.fleet_settings import FleetSettings, VllmSettings
from framefleet.units import GIB

SIZE = {"shortest_edge": 65536, "longest_edge": 9437184}
"""16 frames of 1024 x 576."""
NO_PLUGINS = {"VLLM_PLUGINS": ""}
"""vLLM as it is: ours is not even loaded."""
IPC_GB, CONTEXT_GIB = 2.0, 1.92
"""GPU memory for raw frames, and what vLLM reserves for each API server that decodes on the GPU."""


@dataclass(frozen=True)
class Kind:
    """One kind of server."""

    name: str
    settings: FleetSettings


@dataclass(frozen=True)
class ServedArm:
    """What is asked of which kind of server."""

    name: str
    kind: str
    clips: str = "as_is"
    video: dict[str, Any] = field(default_factory=dict)
    """Of the request's `media_io_kwargs`."""


ARMS = (
    ServedArm("decode_free", "vllm_best", clips="decoded_before", video={"backend": "opencv"}),
    ServedArm("vllm_opencv", "vllm_recipe", video={"backend": "opencv"}),
    ServedArm("vllm_nvdec", "vllm_recipe"),
    ServedArm("vllm_nvdec_best", "vllm_best"),
    ServedArm("ours", "ours"),
)
"""The first is what the others are compared with."""


@dataclass(frozen=True)
class Workload:
    """How much is asked, of what model."""

    model: str
    frames: dict[str, Any]
    """Sampling, of `media_io_kwargs.video`."""
    max_tokens: int
    in_flight: int


@dataclass(frozen=True)
class Tuning:
    """What a run may set otherwise without another script."""

    kv_gib: float = 14.0
    batched_tokens: int = 16384
    best_api_servers: int = 4
    decode_args: tuple[str, ...] = ()
    ours_env: dict[str, str] = field(default_factory=dict)


def gpu_kinds(workload: Workload, num_cores: int, tuning: Tuning) -> list[Kind]:
    """vLLM 0.26.0 as its recipe has it, the best of it, and ours; random weights of the model's shape."""

    def flags(kv_gib: float) -> tuple[str, ...]:
        cache = ("--kv-cache-memory-bytes", str(int(kv_gib * GIB)), "--no-enable-prefix-caching")
        return ("--load-format", "dummy", "--enforce-eager", *cache)

    def vllm(api_servers: int, video: dict[str, Any], ipc_gb: float) -> VllmSettings:
        return VllmSettings(
            dtype="bfloat16",
            max_num_batched_tokens=tuning.batched_tokens,
            gpu_memory_utilization=0.25,  # only looked at on starting, when others have taken theirs
            api_server_count=api_servers,
            mm_ipc_gpu_memory_gb=ipc_gb,
            media_io_kwargs={"video": {**video, **workload.frames}},
            mm_processor_kwargs={"size": SIZE},
        )

    def nvdec(name: str, api_servers: int, threads: int) -> Kind:
        reserved_gib = IPC_GB + api_servers * CONTEXT_GIB  # vLLM takes it out of the KV cache's bytes
        settings = _fleet(
            workload,
            decoder="vllm",
            env={"OMP_NUM_THREADS": str(threads), **NO_PLUGINS},
            args=flags(tuning.kv_gib + reserved_gib),
            vllm=vllm(api_servers, {"backend": "pynvvideocodec"}, IPC_GB),
        )
        return Kind(name, settings)

    ours = _fleet(
        workload,
        decode_service="on",
        decode_args=tuning.decode_args,
        env=tuning.ours_env,
        args=flags(tuning.kv_gib),
        vllm=vllm(4, {}, 0.0),
    )
    best = nvdec("vllm_best", tuning.best_api_servers, 1)
    return [nvdec("vllm_recipe", 4, num_cores), best, Kind("ours", ours)]


def cpu_kinds(workload: Workload, python: Path, core: int, tuning: Tuning) -> list[Kind]:
    """The same on the CPU with the bundled model, to try the script; torchcodec stands for the hardware decoder."""

    def server(name: str, video: dict[str, Any], **settings: Any) -> Kind:
        vllm = VllmSettings(
            max_model_len=4096,
            max_num_seqs=8,
            max_num_batched_tokens=0,
            gpu_memory_utilization=0,
            api_server_count=1,
            renderer_num_workers=2,
            media_io_kwargs={"video": {**video, **workload.frames}},
        )
        args = ("--enforce-eager", "--kv-cache-memory-bytes", "64M", "--trust-request-mm-kwargs")
        fleet = _fleet(workload, python=str(python), args=args, vllm=vllm, **settings)
        return Kind(name, fleet)

    env = {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
    torchcodec = {"backend": "torchcodec"}
    return [
        server("vllm_recipe", torchcodec, decoder="vllm", env={**env, **NO_PLUGINS}),
        server("vllm_best", torchcodec, decoder="vllm", env={**env, **NO_PLUGINS, "OMP_NUM_THREADS": "1"}),
        server("ours", {}, decode_service="on", decode_args=tuning.decode_args, env={**env, **tuning.ours_env}),
    ]


def _fleet(workload: Workload, *, env: dict[str, str], **settings: Any) -> FleetSettings:
    quiet = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiling it takes minutes
    }  # fmt: skip
    return FleetSettings(
        model=workload.model,
        served_model_name="m",
        engine="vllm",
        replicas=1,
        allowed_local_media_path="/",
        mps="off",  # one daemon for all servers of a GPU, started here
        cores="split",
        env={**quiet, **env},
        **settings,
    )
