"""What the attacks share with the tests of the federation."""

from tests.federation.conftest import a_run, life, lived_once, no_waiting_for_the_disk

__all__ = ["a_run", "life", "lived_once", "no_waiting_for_the_disk"]
