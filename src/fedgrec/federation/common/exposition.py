"""The page that Prometheus reads. It is imported only on request: a node without it needs one package less."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from fedgrec.federation.common.web import Answer


def exposition(collector: Collector) -> Answer:
    """The metrics of one collector, in a registry of their own."""
    registry = CollectorRegistry()
    registry.register(collector)
    return Answer(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
