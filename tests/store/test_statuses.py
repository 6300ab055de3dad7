"""The compact mapping against a dict."""

import pyarrow as pa
import pytest
from caption_records import digest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.store import statuses as module
from framefleet.store.statuses import Statuses

DIGESTS = st.one_of(
    st.binary(min_size=16, max_size=16), st.sampled_from([bytes(16), b"a" + bytes(15), b"a\0b" + bytes(13)])
).map(bytes.hex)
ENTRIES = st.lists(st.tuples(DIGESTS, st.sampled_from(["ok", "truncated", "rejected", "failed"])), max_size=60)


@given(first=ENTRIES, second=ENTRIES, puts=ENTRIES, merge_above=st.integers(1, 8))
def test_it_is_a_mapping(first, second, puts, merge_above):
    chunks = [tuple(zip(*entries, strict=True)) for entries in (first, second) if entries]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_MERGE_ABOVE", merge_above)
        compact = Statuses(chunks)
        early = compact.copy()
        for key, status in puts:
            compact.put(key, status)
    expected = dict(first + second + puts)
    assert dict(compact) == expected
    assert len(compact) == len(expected)
    assert all(compact[key] == status for key, status in expected.items())
    assert {name: list(expected.values()).count(name) for name in compact.counts()} == compact.counts()
    assert compact.having("failed") == {key for key, status in expected.items() if status == "failed"}
    assert dict(early) == dict(first + second)


@pytest.mark.parametrize("key", ["", "zz", "ab", digest(1) + "00", "ab" + "00" * 14, digest(2).upper() + "x"])
def test_what_is_not_there_is_missed(key):
    compact = Statuses([([digest(0), digest(1)], ["ok", "ok"])])
    assert key not in compact
    assert compact.get(key) is None
    with pytest.raises(KeyError):
        compact[key]


def test_from_arrow_columns():
    rows = pa.table({"digest": [digest(n) for n in range(300)], "status": ["ok", "failed", "rejected"] * 100})
    compact = Statuses((batch.column(0), batch.column(1)) for batch in rows.to_batches(max_chunksize=70))
    assert dict(compact) == dict(zip(*rows.to_pydict().values(), strict=True))
