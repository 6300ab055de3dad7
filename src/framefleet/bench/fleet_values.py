"""Ladders of a fleet's settings: where each value goes in `FleetSettings`, and how the result is written down. Pure.

A ladder's name says where its value goes: `concurrency` to the load; `vllm.api_server_count` and the like to that field
of the fleet's settings; `env.OMP_NUM_THREADS` to the replicas' environment; `decode_args.--budget` and `args.--flag` to
flags of the decode service and of the engine's server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from framefleet.bench.ladder import Ladder, Settings, doubling
from framefleet.errors import ConfigError
from framefleet.serve.fleet_plan import plan_fleet
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.host import look_at_host

CONCURRENCY = "concurrency"
BUDGET = "decode_args.--budget"
_FLAG_LISTS = ("decode_args", "args")
_SECTIONS = ("vllm", "embedded", "canary")


def default_ladders(engine: str, *, most_in_flight: int, has_decode_service: bool, has_gpu: bool) -> list[Ladder]:
    """What there is to climb for an engine (`vllm` or `embedded`). Pure."""
    in_flight = Ladder(name=CONCURRENCY, rungs=doubling(most_in_flight, min(4, most_in_flight)), restarts=False)
    if engine == "embedded":
        return [
            in_flight,
            Ladder(name="embedded.max_batch", rungs=(1, 4, 8, 16)),
            Ladder(name="embedded.decode_workers", rungs=(1, 2, 4)),
            Ladder(name="embedded.num_threads", rungs=(1, 2, 4)),
        ]
    ladders = [
        in_flight,
        Ladder(name="vllm.api_server_count", rungs=(1, 2, 4, 8)),
        Ladder(name="vllm.renderer_num_workers", rungs=(1, 2, 4)),
        Ladder(name="env.OMP_NUM_THREADS", rungs=(1, 2, 4)),
        Ladder(name="args.--mm-tensor-ipc", rungs=("direct_rpc", "torch_shm"), costs=False),
    ]
    if has_decode_service:
        ladders.insert(0, Ladder(name=BUDGET, rungs=("512 MiB", "1 GiB", "2 GiB", "4 GiB", "8 GiB")))
    if has_gpu:
        ladders.append(Ladder(name="mps", rungs=("off", "on"), costs=False))
        ladders.append(Ladder(name="decoder", rungs=("vllm", "framefleet"), costs=False))
    return ladders


def with_settings(base: FleetSettings, chosen: Mapping[str, Any]) -> FleetSettings:
    """`base` with the ladders' values in their places. Raises ConfigError for a name or value that has none. Pure."""
    tree: dict[str, Any] = msgspec.to_builtins(base)
    for name, value in chosen.items():
        if name == CONCURRENCY:
            continue
        above, _, last = name.partition(".")
        if above in _FLAG_LISTS:
            tree[above] = _with_flag(tree[above], last, value)
        elif above == "env":
            tree["env"] = {**tree["env"], last: str(value)}
        elif last:
            tree.setdefault(above, {})
            tree[above][last] = value
        else:
            tree[name] = value
    try:
        return msgspec.convert(tree, FleetSettings)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError("no such setting of a fleet", given=f"{dict(chosen)}", allowed=str(error)) from error


def settings_of(base: FleetSettings, ladders: Sequence[Ladder]) -> Settings:
    """Today's values of the ladders' settings, where they are among the rungs. Pure."""
    tree: dict[str, Any] = msgspec.to_builtins(base)
    found: Settings = {}
    for ladder in ladders:
        above, _, last = ladder.name.partition(".")
        if above in _FLAG_LISTS:
            words = list(tree[above])
            value = words[words.index(last) + 1] if last in words else None
        else:
            value = tree.get(above, {}).get(last) if last else tree.get(above)
        matches = [rung for rung in ladder.rungs if str(rung) == str(value)]
        if matches:
            found[ladder.name] = matches[0]
    return found


def fleet_toml(settings: FleetSettings, chosen: Settings) -> str:
    """The settings that are not the defaults, as section `[fleet]`; in a comment those chosen. Pure."""
    plain: dict[str, Any] = msgspec.to_builtins(FleetSettings())
    mine: dict[str, Any] = msgspec.to_builtins(settings)
    words = ", ".join(f"{name} {value}" for name, value in chosen.items())
    lines = [f"# chosen: {words} (what is a default is not written)", "[fleet]", *_assignments(mine, plain)]
    for section in _SECTIONS:
        if changed := _assignments(mine[section], plain[section]):
            lines += ["", f"[fleet.{section}]", *changed]
    return "\n".join(lines) + "\n"


def engine_line(settings: FleetSettings) -> str:
    """The command of one replica, as a shell takes it (`vllm serve ...`, or our own engine server)."""
    return str(plan_fleet(settings, look_at_host(settings.python), Path("fleet")).replicas[0])


def _assignments(mine: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    return [f"{n} = {_toml(value)}" for n, value in mine.items() if value != plain[n] and n not in _SECTIONS]


def _toml(value: Any) -> str:
    """Strings, numbers and lists are written as in JSON; tables inline."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _with_flag(words: Sequence[str], flag: str, value: Any) -> list[str]:
    kept = list(words)
    if flag in kept:
        at = kept.index(flag)
        del kept[at : at + 2]
    return [*kept, flag, str(value)]
