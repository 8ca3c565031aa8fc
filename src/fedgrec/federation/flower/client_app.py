"""A node's answer to a Flower message."""

from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgrec.errors import FedgrecError
from fedgrec.federation.flower.records import failure, from_records, to_records
from fedgrec.federation.node.gateway import handle


def answer(folder: Path, message: Message) -> RecordDict:
    """The answer of the node or gateway in this folder: the whole client."""
    try:
        return to_records(handle(folder, from_records(message.content)))
    except FedgrecError as error:
        return to_records(failure(str(error)))


client_app = ClientApp()


@client_app.query()
def on_query(message: Message, context: Context) -> Message:
    """An app that Flower demands for its SuperNode. That starts a process for each message, which would lose masks."""
    return Message(
        Error(0, "be a node with  fedgrec federation node FOLDER, not with flower-supernode"), reply_to=message
    )
