"""A node's answer to a Flower message."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.packets import failure
from fedgrec.federation.flower.records import from_records, to_records
from fedgrec.federation.node.gateway import NodeProcess


def answer(process: NodeProcess, message: Message) -> RecordDict:
    """The answer of a node or gateway: the whole client."""
    try:
        return to_records(process.handle(from_records(message.content)))
    except FedgrecError as error:
        return to_records(failure(error))


client_app = ClientApp()


@client_app.query()
def on_query(message: Message, context: Context) -> Message:
    """An app that Flower demands for its SuperNode. That starts a process for each message, which would lose masks."""
    return Message(
        Error(0, "be a node with  fedgrec federation node FOLDER, not with flower-supernode"), reply_to=message
    )
