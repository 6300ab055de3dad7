"""What metrics pages of vLLM and of our own server say about a stretch of time."""

import pytest

from framefleet.bench.exposition import parse_exposition

PAGE = """# HELP vllm:request_queue_time_seconds x
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{{engine="0",le="0.5"}} {few}
vllm:request_queue_time_seconds_bucket{{engine="0",le="1.0"}} {all}
vllm:request_queue_time_seconds_bucket{{engine="0",le="+Inf"}} {all}
vllm:request_queue_time_seconds_sum{{engine="0"}} {sum}
vllm:request_queue_time_seconds_count{{engine="0"}} {all}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{engine="0"}} {few}
vllm:num_preemptions_created{{engine="0"}} 1.7e9
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
# TYPE framefleet:decode_seconds histogram
framefleet:decode_seconds_bucket{{le="+Inf"}} 2
framefleet:decode_seconds_sum 3
framefleet:decode_seconds_count 2
"""


def page(few, whole, total):
    return PAGE.format(few=few, all=whole, sum=total)


def test_means_and_quantiles_are_of_what_was_added():
    after, before = parse_exposition([page(6, 14, 11.0)]), parse_exposition([page(2, 4, 3.0)])
    counted = after.since(before)
    assert counted.mean("vllm:request_queue_time_seconds") == pytest.approx(0.8)
    assert counted.quantile("vllm:request_queue_time_seconds", 0.2) == pytest.approx(0.25)
    assert counted.quantile("vllm:request_queue_time_seconds", 0.7) == pytest.approx(0.75)
    assert counted.total("vllm:num_preemptions") == 4
    assert counted.mean("framefleet:decode_seconds") is None  # nothing was added


def test_counts_of_servers_add_up_and_levels_are_averaged():
    both = parse_exposition([page(1, 2, 3.0), page(1, 2, 3.0)])
    assert both.total("vllm:num_preemptions") == 2
    assert both.level("vllm:kv_cache_usage_perc") == 0.5
    assert both.mean("vllm:request_queue_time_seconds") == 1.5


def test_our_spans_are_found_by_their_prefix():
    assert parse_exposition([page(1, 2, 3.0)]).spans() == {"decode": "framefleet:decode_seconds"}


def test_what_nobody_tells_is_none():
    nothing = parse_exposition([""])
    assert nothing.total("vllm:num_preemptions") is None
    assert nothing.level("vllm:kv_cache_usage_perc") is None
    assert nothing.quantile("vllm:request_queue_time_seconds", 0.5) is None


def test_beyond_the_last_bound_the_bound_is_told():
    late = '# TYPE t histogram\nt_bucket{le="1.0"} 0\nt_bucket{le="+Inf"} 9\nt_sum 99\nt_count 9\n'
    assert parse_exposition([late]).quantile("t", 0.9) == 1.0
