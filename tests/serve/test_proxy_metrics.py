"""The dashboard asks only for what the proxy tells."""

import json
import re
from importlib.resources import files

import pytest
from prometheus_client.parser import text_string_to_metric_families

from framefleet.serve.proxy import Proxy
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import StaticFleet

DASHBOARD = json.loads((files("framefleet.serve") / "grafana.json").read_text())
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.fixture(scope="module")
def told():
    """Sample name -> the labels that some sample of it has."""
    metrics = Proxy(StaticFleet.of_urls(["http://127.0.0.1:1"]), ProxySettings()).metrics
    metrics.requests.labels("r0", "200", "answered", "live").inc()
    for counter in (metrics.retries, metrics.failures):
        counter.labels("r0", "lost").inc()
    for histogram, label in ((metrics.queue, "live"), (metrics.total, "live"), (metrics.first_byte, "r0")):
        histogram.labels(label).observe(1)
    families = text_string_to_metric_families(metrics.text().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_and_label_of_the_dashboard_exists(told, expression):
    names = re.findall(r"framefleet_proxy_\w+", expression)
    assert names
    labels = re.findall(r"by \(([\w, ]+)\)", expression) + re.findall(r"{(\w+)!?=", expression)
    for name in names:
        assert name in told
        assert {label.strip() for group in labels for label in group.split(",")} <= told[name]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_legend_names_a_label_that_is_there(told, panel):
    for target in panel["targets"]:
        by = re.search(r"by \((?:le, )?([\w, ]+)\)", target["expr"])
        there = set(by[1].split(", ")) if by else told[re.search(r"framefleet_proxy_\w+", target["expr"])[0]]
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= there


def test_panels_do_not_overlap():
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in PANELS]
    assert len(set(places)) == len(places) == len({p["id"] for p in PANELS})


def test_everything_told_is_drawn(told):
    drawn = " ".join(EXPRESSIONS)
    series = {re.sub(r"_(bucket|sum|count|created|total)$", "", name) for name in told}
    assert [name for name in series if name not in drawn] == []
