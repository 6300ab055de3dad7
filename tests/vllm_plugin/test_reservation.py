"""The KV cache's loss, against the figures of vLLM's own arithmetic."""

import pytest

from framefleet.errors import ConfigError
from framefleet.units import GIB, MIB
from framefleet.vllm_plugin.compat import TABLE
from framefleet.vllm_plugin.reservation import kv_reservation, main, service_reservation


def test_two_gib_with_four_api_servers_cost_ten():
    found = kv_reservation(2 * GIB, decodes_on_gpu=True, api_servers=4)
    assert found.total_bytes / GIB == pytest.approx(2 + 4 * (2 * 0.125 + 1.8), abs=1e-6)
    assert found.share_bytes == 512 * MIB
    assert str(found) == (
        "decoding takes 10.2 GiB from the KV cache: 2.0 GiB budget + 4 API servers x "
        "(256.0 MiB decoders + 1.8 GiB CUDA context); one server's share is 512.0 MiB"
    )


def test_large_pictures_need_larger_decoders_where_vllm_counts_them():
    size = (7680, 4320)
    new = kv_reservation(0, decodes_on_gpu=True, hw_decoders=3, max_size=size)
    assert new.decoders_bytes == 3 * 7680 * 4320 * 6
    older = kv_reservation(0, decodes_on_gpu=True, hw_decoders=3, max_size=size, facts=TABLE[1])
    assert older.decoders_bytes == 3 * 128 * MIB
    oldest = kv_reservation(0, decodes_on_gpu=True, hw_decoders=3, max_size=size, facts=TABLE[0])
    assert oldest.decoders_bytes == 128 * MIB


def test_small_pictures_take_the_least():
    assert kv_reservation(0, decodes_on_gpu=True, hw_decoders=1, max_size=(640, 480)).decoders_bytes == 128 * MIB


def test_on_the_cpu_the_budget_alone_is_lost():
    assert kv_reservation(GIB, decodes_on_gpu=False, api_servers=4).total_bytes == GIB


@pytest.mark.parametrize("wrong", [{"api_servers": 0}, {"hw_decoders": 0}, {"budget_bytes": -1}])
def test_less_than_nothing_is_refused(wrong):
    asked = {"budget_bytes": GIB, "decodes_on_gpu": True, **wrong}
    with pytest.raises(ConfigError, match="too few"):
        kv_reservation(asked.pop("budget_bytes"), **asked)


def test_a_service_costs_its_context_once():
    found = service_reservation(4 * GIB)
    assert found.total_bytes / GIB == pytest.approx(5.8)
    assert found.mm_ipc_gpu_memory_gb == 5.8
    assert service_reservation(GIB).mm_ipc_gpu_memory_gb * GIB >= service_reservation(GIB).total_bytes
    with pytest.raises(ConfigError):
        service_reservation(0)


def test_it_is_printed_before_the_start(capsys):
    main(["--mm-ipc-gpu-memory-gb", "2", "--api-server-count", "4"])
    main(["--service", "--gpu-budget", "2GiB"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("decoding takes 10.2 GiB from the KV cache")
    assert "takes 3.8 GiB of the GPU" in second
    assert "--mm-ipc-gpu-memory-gb 3.8" in second
