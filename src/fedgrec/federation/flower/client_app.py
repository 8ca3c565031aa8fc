"""A node's answer to a Flower message, and the app by which Flower's own SuperNode would ask for it."""

from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgrec.errors import FedgrecError
from fedgrec.federation.flower.records import failure, from_records, to_records
from fedgrec.federation.node.gateway import handle


def answer(folder: Path, message: Message) -> RecordDict:
    """What the node or gateway in this folder says to a message: the whole client."""
    try:
        return to_records(handle(folder, from_records(message.content)))
    except FedgrecError as error:
        return to_records(failure(str(error)))


client_app = ClientApp()


@client_app.query()
def on_query(message: Message, context: Context) -> Message:
    """Flower's own SuperNode starts a process for every message and ends here."""
    folder = context.node_config.get("folder")
    if not folder:
        return Message(Error(0, "start the SuperNode with  --node-config 'folder=\"...\"'"), reply_to=message)
    return Message(answer(Path(str(folder)), message), reply_to=message)
