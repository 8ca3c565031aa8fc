"""`/metrics` and `/health` of a server: its status, for Prometheus and for programs that restart services."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedgrec.federation.common.exposition import exposition
from fedgrec.federation.common.web import Answer, Pages, health
from fedgrec.federation.server.status import STATES, Status, status


def pages(folder: Path) -> Pages:
    return {"/metrics": lambda: exposition(OfServer(status(folder))), "/health": lambda: server_health(status(folder))}


def server_health(found: Status) -> Answer:
    return health(found.trouble, {"state": found.state, "round": found.round, "rounds": found.rounds})


class OfServer(Collector):
    """A status for Prometheus; values that are not known yet are left out."""

    def __init__(self, found: Status) -> None:
        self.found = found

    def collect(self) -> Iterator[Metric]:
        s = self.found
        state = GaugeMetricFamily("fedgrec_state", "1 for the state that the federation is in", labels=["state"])
        for name in STATES:
            state.add_metric([name], float(name == s.state))
        yield state
        for name, text, value in (
            ("season", "the season that it is in, or rests after", s.season),
            ("changed_users", "users who had changes when they were last counted", s.changed),
            ("serves", "the season whose model nodes recommend with", s.serves),
            ("catalogue", "the version of the catalogue", s.catalogue),
            ("round", "training rounds that are over", s.round),
            ("rounds", "training rounds with which the season ends", s.rounds),
            ("rounds_per_minute", "over the last rounds", s.rounds_per_minute),
            ("seconds_left", "until the last round, at this rate", s.seconds_left),
            ("lost_in_a_row", "sums that were lost since the last one that counted", s.lost_in_a_row),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"fedgrec_{name}", text, value=value)
        for name, text, value in (
            ("bytes_up", "bytes that nodes have sent in sums", s.bytes_up),
            ("bytes_down", "bytes that nodes were sent in sums", s.bytes_down),
            ("sum_seconds", "seconds that sums took", s.seconds),
            ("sums_applied", "sums that count", s.sums_applied),
            ("sums_lost", "sums that were lost", s.sums_lost),
        ):
            yield CounterMetricFamily(f"fedgrec_{name}", text, value=value)
        yield from self._metric()
        yield from self._nodes()

    def _metric(self) -> Iterator[Metric]:
        if self.found.metrics:
            last = self.found.metrics[-1]
            metric = GaugeMetricFamily("fedgrec_metric", "the last evaluation", labels=["name"])
            for name in (name for name in last if "@" in name):
                metric.add_metric([name], last[name])
            yield metric
            yield GaugeMetricFamily("fedgrec_metric_round", "the round that it was of", value=last["round"])

    def _nodes(self) -> Iterator[Metric]:
        for name, text in (
            ("users", "users that the node has brought"),
            ("lag", "training rounds since the last one that the node is in"),
            ("heard_seconds", "seconds since the node's last answer"),
        ):
            family = GaugeMetricFamily(f"fedgrec_node_{name}", text, labels=["node"])
            for node in self.found.nodes:
                if (value := getattr(node, name)) is not None and not node.removed:
                    family.add_metric([node.name], value)
            yield family
