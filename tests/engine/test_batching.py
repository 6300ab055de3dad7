import threading
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from framefleet.engine.embedded.batching import Inbox, form_batch


@dataclass(frozen=True)
class One:
    id: int
    key: str
    num_tokens: int


queues = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), min_size=1, max_size=20).map(
    lambda rows: [One(i, *row) for i, row in enumerate(rows)]
)


@given(queues, st.integers(1, 6), st.integers(1, 200))
def test_a_batch_keeps_every_bound_and_never_passes_over_the_oldest(waiting, max_batch, max_tokens):
    batch = form_batch(waiting, max_batch=max_batch, max_batch_tokens=max_tokens)
    assert batch[0] is waiting[0]
    assert len(batch) <= max_batch
    assert {one.key for one in batch} == {waiting[0].key}
    assert len(batch) == 1 or max(one.num_tokens for one in batch) * len(batch) <= max_tokens
    assert [one.id for one in batch] == sorted(one.id for one in batch)


@given(queues, st.integers(1, 6))
def test_everything_is_given_out_once(waiting, max_batch):
    inbox = Inbox(max_batch=max_batch, max_batch_tokens=100, batch_wait_s=0)
    for one in waiting:
        inbox.put(one)
    taken = []
    while len(taken) < len(waiting):
        taken += inbox.take()
    assert sorted(one.id for one in taken) == list(range(len(waiting)))


def test_a_full_batch_does_not_wait():
    inbox = Inbox(max_batch=2, max_batch_tokens=100, batch_wait_s=3600)
    inbox.put(One(1, "a", 1))
    threading.Timer(0.05, inbox.put, [One(2, "a", 1)]).start()
    assert [one.id for one in inbox.take()] == [1, 2]


def test_a_withdrawn_question_is_not_given_out():
    inbox = Inbox(max_batch=4, max_batch_tokens=100, batch_wait_s=0)
    inbox.put(One(1, "a", 1))
    inbox.put(One(2, "a", 1))
    inbox.withdraw(1)
    assert [one.id for one in inbox.take()] == [2]
