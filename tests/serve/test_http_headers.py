"""What passes the proxy and what stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.serve.http_headers import (
    HOP_BY_HOP,
    end_to_end,
    for_replica,
    new_traceparent,
    request_id_of,
    value_of,
)

NAMES = st.sampled_from([*HOP_BY_HOP, b"x-a", b"X-B", b"accept", b"Content-Type"])


def sent(*headers, upstream_key="", hides_key=False, client="10.0.0.1"):
    return for_replica(headers, request_id="id", client=client, upstream_key=upstream_key, hides_key=hides_key)


@given(st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"close", b"X-B, x-a"]))))
def test_nothing_of_the_connection_passes_and_the_rest_in_order(headers):
    passed = list(end_to_end(headers))
    named = {w.strip().lower() for k, v in headers if k.lower() == b"connection" for w in v.split(b",")}
    assert all(key.lower() not in HOP_BY_HOP | named for key, _ in passed)
    assert passed == [one for one in headers if one[0].lower() not in HOP_BY_HOP | named]


def test_our_clients_key_stays_here():
    key = (b"authorization", b"Bearer mine")
    assert ("authorization", "Bearer mine") in sent(key)
    assert not [v for k, v in sent(key, hides_key=True) if k == "authorization"]
    assert [v for k, v in sent(key, upstream_key="inner") if k == "authorization"] == ["Bearer inner"]


def test_forwarders_are_appended():
    assert ("x-forwarded-for", "1.2.3.4, 10.0.0.1") in sent((b"X-Forwarded-For", b"1.2.3.4"))
    assert ("x-forwarded-for", "10.0.0.1") in sent()


@pytest.mark.parametrize("given", [b"", b"rubbish", b"00-" + b"g" * 32 + b"-" + b"0" * 16 + b"-01"])
def test_a_wrong_trace_is_replaced(given):
    (trace,) = [value for key, value in sent((b"traceparent", given)) if key == "traceparent"]
    assert len(trace) == len(new_traceparent()) == 55
    assert trace != given.decode()


@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_an_id_is_fit_for_a_log(text):
    given = request_id_of([(b"x-request-id", text.encode("latin-1"))])
    assert given == text or (given.isalnum() and len(given) == 16)
    assert "\n" not in given


def test_values_are_found_whatever_their_case():
    assert value_of([(b"X-A", b"1"), (b"x-a", b"2")], b"x-a") == "1"
    assert value_of([], b"x-a") == ""
