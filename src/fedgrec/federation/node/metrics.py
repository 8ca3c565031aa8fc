"""`/metrics` and `/health` of a node: whether it has a server, and how many messages it answered. Nothing of users."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedgrec.federation.common.exposition import exposition
from fedgrec.federation.common.web import Answer, Pages, health
from fedgrec.federation.node.contact import Contact


def pages(contact: Contact) -> Pages:
    return {"/metrics": lambda: exposition(OfNode(contact)), "/health": lambda: node_health(contact)}


def node_health(contact: Contact) -> Answer:
    return health(contact.trouble, {"connected": contact.connected, "heard_seconds": round(contact.silence, 1)})


class OfNode(Collector):
    """A node's metrics for Prometheus: only what the server knows too."""

    def __init__(self, contact: Contact) -> None:
        self.contact = contact

    def collect(self) -> Iterator[Metric]:
        c = self.contact
        for name, text, value in (
            ("connected", "1 while the server answers", float(c.connected)),
            ("heard_seconds", "seconds since the server was heard", c.silence),
            ("refused", "1 where the server will not have this node", float(bool(c.refusal))),
        ):
            yield GaugeMetricFamily(f"fedgrec_node_{name}", text, value=value)
        yield CounterMetricFamily("fedgrec_node_messages_answered", "messages that were answered", value=c.answered)
        yield CounterMetricFamily("fedgrec_node_messages_failed", "messages that could not be answered", value=c.failed)
