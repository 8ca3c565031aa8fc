"""The page that Prometheus reads. It is imported only on request: a node without it needs one package less."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from fedgrec.federation.common.web import Answer

Number = tuple[str, str, float | None]  # name, what it is, value; one that is not known yet (None) is left out


class Exposition(Collector):
    """Metrics whose names begin with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.metrics: list[Metric] = []

    def collect(self) -> list[Metric]:
        return self.metrics

    def gauges(self, *numbers: Number) -> None:
        self.metrics += [GaugeMetricFamily(self.prefix + n, text, value=v) for n, text, v in numbers if v is not None]

    def counters(self, *numbers: Number) -> None:
        self.metrics += [CounterMetricFamily(self.prefix + n, text, value=value) for n, text, value in numbers]

    def labelled(self, name: str, text: str, label: str, values: Mapping[str, float]) -> None:
        family = GaugeMetricFamily(self.prefix + name, text, labels=[label])
        for value in values:
            family.add_metric([value], values[value])
        self.metrics.append(family)

    def page(self) -> Answer:
        registry = CollectorRegistry()
        registry.register(self)
        return Answer(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
