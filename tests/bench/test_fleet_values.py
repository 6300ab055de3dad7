"""Where ladders' values go in a fleet's settings, and the fleet.toml that comes out."""

import tomllib

import msgspec
import pytest

from framefleet.bench.fleet_values import BUDGET, default_ladders, engine_line, fleet_toml, settings_of, with_settings
from framefleet.bench.ladder import Ladder
from framefleet.errors import ConfigError
from framefleet.serve.fleet_settings import FleetSettings

BASE = FleetSettings(model="/models/m", engine="vllm", decode_args=("--budget", "4 GiB", "--cpu-workers", "8"))
CHOSEN = {
    "concurrency": 32, "vllm.api_server_count": 8, "env.OMP_NUM_THREADS": 2, BUDGET: "1 GiB",
    "args.--mm-tensor-ipc": "torch_shm", "mps": "on", "decoder": "vllm",
}  # fmt: skip


def test_each_value_goes_to_its_place():
    found = with_settings(BASE, CHOSEN)
    assert found.vllm.api_server_count == 8
    assert found.env == {"OMP_NUM_THREADS": "2"}
    assert found.decode_args == ("--cpu-workers", "8", "--budget", "1 GiB")
    assert found.args == ("--mm-tensor-ipc", "torch_shm")
    assert (found.mps, found.decoder) == ("on", "vllm")
    assert found.vllm.max_num_seqs == BASE.vllm.max_num_seqs


def test_todays_values_are_those_that_are_rungs():
    ladders = [
        Ladder(name=BUDGET, rungs=("1 GiB", "4 GiB")), Ladder(name="vllm.api_server_count", rungs=(1, 2, 4)),
        Ladder(name="env.OMP_NUM_THREADS", rungs=(1, 2)), Ladder(name="mps", rungs=("off", "on"), costs=False),
    ]  # fmt: skip
    assert settings_of(BASE, ladders) == {BUDGET: "4 GiB", "vllm.api_server_count": 4}
    assert settings_of(with_settings(BASE, CHOSEN), ladders)["env.OMP_NUM_THREADS"] == 2


@pytest.mark.parametrize("wrong", [{"vllm.api_servers": 2}, {"mps": "maybe"}, {"nothing": 1}])
def test_a_name_or_value_that_has_no_place_is_refused(wrong):
    with pytest.raises(ConfigError, match="no such setting of a fleet"):
        with_settings(BASE, wrong)


def test_the_file_reads_back_as_the_settings():
    wanted = msgspec.structs.replace(
        with_settings(BASE, CHOSEN), vllm=msgspec.structs.replace(BASE.vllm, media_io_kwargs={"video": {"fps": 2}})
    )
    written = tomllib.loads(fleet_toml(wanted, CHOSEN))["fleet"]
    assert msgspec.convert(written, FleetSettings) == wanted


def test_the_line_of_a_replica():
    line = engine_line(FleetSettings(replicas=1, embedded=msgspec.structs.replace(BASE.embedded, max_batch=4)))
    assert "framefleet.serve.openai_app" in line
    assert "--max-batch 4" in line


def test_ladders_by_engine():
    names = {
        ladder.name for ladder in default_ladders("vllm", most_in_flight=64, has_decode_service=True, has_gpu=True)
    }
    assert {BUDGET, "concurrency", "vllm.api_server_count", "env.OMP_NUM_THREADS", "mps", "decoder"} <= names
    bare = default_ladders("embedded", most_in_flight=64, has_decode_service=False, has_gpu=False)
    assert {ladder.name for ladder in bare} == {
        "concurrency", "embedded.max_batch", "embedded.decode_workers", "embedded.num_threads",
    }  # fmt: skip
