"""Figures of the requests that ended in a stretch of time."""

from framefleet.serve.recent import EndedRequest, RecentRequests, figures_of


def ended(total_s=1.0, is_failure=False, is_answered=True):
    return EndedRequest(0.0, "r0", is_failure, is_answered, total_s / 2, total_s)


def test_figures():
    figures = figures_of([ended(float(n)) for n in range(1, 101)] + [ended(900.0, True, False)] * 25, 50.0)
    assert (figures.num_requests, figures.num_failures, figures.error_rate) == (125, 25, 0.2)
    assert (figures.answers_per_s, figures.p50_s, round(figures.p95_s)) == (2.0, 50.5, 95)


def test_figures_of_nothing():
    assert figures_of([], 10.0).p95_s == 0


def test_what_counts_as_a_failure():
    recent = RecentRequests()
    for status, end in [(200, "answered"), (400, "answered"), (502, "failed"), (200, "cut"), (499, "client_gone")]:
        recent.add(replica="r0", status=status, end=end, first_byte_s=0, total_s=0)
    found = recent.between(0, 10**12)
    assert [one.is_failure for one in found] == [False, False, True, True, False]
    assert [one.is_answered for one in found] == [True, False, False, False, False]
    assert recent.between(0, 1) == []
