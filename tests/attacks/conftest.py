"""What the attacks share with the tests of the federation."""

from tests.federation.conftest import no_waiting_for_the_disk

__all__ = ["no_waiting_for_the_disk"]
