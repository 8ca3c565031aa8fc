"""The app that the SuperLink starts once for a run: it drives the federation of a server's folder."""

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgrec.federation.flower.processes import end_with_starter
from fedgrec.federation.flower.transport import FlowerTransport
from fedgrec.federation.server.coordinator import run
from fedgrec.federation.server.log import Lines, writing


def app_with(observer: Callable[[Path, Callable[[str], None]], Lines]) -> ServerApp:
    """An app whose run this observer watches."""
    app = ServerApp()

    @app.main()
    def on_start(grid: Grid, context: Context) -> None:
        """Flower's SuperLink starts this once for a run."""
        end_with_starter()  # Flower would need half a minute for that
        folder = Path(str(context.run_config["folder"]))
        with writing(folder) as say:
            run(FlowerTransport(grid), folder, observer(folder, say))

    return app
