"""Filters: SQL and Python say the same, and what the user gives stays a value."""

import fnmatch
from datetime import UTC, datetime, timedelta

import lance
import pytest
from caption_records import record
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.store.schema import to_table
from framefleet.store.where import Where

START = datetime(2026, 9, 30, tzinfo=UTC)
NAMES = [
    "a.mp4", "A.mp4", "dir/a.mp4", "dir/sub/b.mov", "it's.mp4", 'say "hi".mp4', "100%_#1?&é.mp4", "back\\slash.mp4",
    "[x].mp4", "{1,2}.mp4", "a+b|c.mp4", "line\nbreak.mp4", "line\n", "ひまわり.mp4", "-dash first.mp4", "*.mp4",
    "nul\0.mp4", "' OR 1=1 --", "a^b$c.mp4", "x-y~z.mp4", "",
]  # fmt: skip
RECORDS = [
    record(n, clip=name, model=f"m'{n % 4}", status=("ok", "failed", "truncated")[n % 3], start_s=float(n),
           end_s=n + (2.0 if n % 2 else 0.0), created_at=(START + timedelta(hours=n)).isoformat() if n % 5 else "")
    for n, name in enumerate(NAMES)
]  # fmt: skip


@pytest.fixture(scope="module")
def dataset():
    return lance.write_dataset(to_table(RECORDS), "memory://")


def found(dataset, where: Where) -> list[str]:
    return dataset.to_table(columns=["digest"], filter=where.sql()).column("digest").to_pylist()


def agrees(dataset, where: Where) -> None:
    assert found(dataset, where) == [one.digest for one in RECORDS if where(one)]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_finds_itself(dataset, name):
    agrees(dataset, Where(clip=name))
    literally = "".join(f"[{c}]" if c in "*?[" else c for c in name)
    assert [one.clip for one in RECORDS if Where(clip=literally)(one)] == [name]
    agrees(dataset, Where(clip=literally))


GLOBS = [
    "*", "*.mp4", "dir/*", "?.mp4", "[aA].mp4", "[!a].mp4", "[a-z]*", "[!a-z]*", "*[[]*", "[]x]*", "[", "[]", "[!]",
    "*'*",
    "*\\*", "[z-a]", "[!z-a].mp4", "[^a]*", "[a&&b]*", "[\\]*", "*\n*",
    "[--a]*", "[ab",
]  # fmt: skip


@pytest.mark.parametrize("glob", GLOBS)
def test_globs(dataset, glob):
    agrees(dataset, Where(clip=glob))
    assert [one.clip for one in RECORDS if Where(clip=glob)(one)] == [
        name for name in NAMES if fnmatch.fnmatchcase(name, glob)
    ]


HOURS = st.integers(-1, 22).map(lambda hours: START + timedelta(hours=hours))
ALPHABET = st.sampled_from("ab*?[]!-^$\\'\"{}()+.|&~# \n%_é/0")


@given(glob=st.text(ALPHABET, max_size=8), name=st.text(ALPHABET, max_size=6))
def test_globs_mean_what_fnmatch_means(glob, name):
    assert Where(clip=glob)(record(1, clip=name)) == fnmatch.fnmatchcase(name, glob)


@given(text=st.text(max_size=12), glob=st.text(ALPHABET, max_size=10))
def test_sql_and_python_agree_on_any_text(dataset, text, glob):
    agrees(dataset, Where(clip=glob))
    agrees(dataset, Where(clip=text))
    agrees(dataset, Where(model=text))


@given(
    st.fixed_dictionaries({
        "created_from": st.none() | HOURS,
        "created_before": st.none() | HOURS.map(lambda time: time.replace(tzinfo=None)),
        "overlaps_s": st.sampled_from([None, (3, 5), (-1.5, 0.5), (7.25, 30)]),
        "status": st.sets(st.sampled_from(["ok", "failed", "truncated", "rejected"])).map(tuple),
        "model": st.sampled_from([None, "m'0", "m'1", "other"]),
    })
)  # fmt: skip
def test_sql_and_python_agree_on_every_field(dataset, fields):
    agrees(dataset, Where(**fields))


def test_lone_surrogates_match_nothing_and_break_nothing(dataset):
    agrees(dataset, Where(clip="\ud83d*"))
    agrees(dataset, Where(model="\udcff"))


def test_no_condition_is_no_filter():
    assert Where().sql() is None
    assert Where()(record(1))


def test_an_empty_stretch_is_refused():
    with pytest.raises(ConfigError, match="empty stretch"):
        Where(overlaps_s=(2.0, 2.0))
