"""What `init` makes: an authority for one server, keys that match the roster, files that nobody else can read."""

import contextlib
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError
from fedgrec.federation.common.catalogue import CATALOGUE
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import (
    CA,
    KEYS,
    NETWORK,
    TLS_CERTIFICATE,
    TLS_KEY,
    NodeNetwork,
    ServerNetwork,
    read_flower_key,
    read_network,
)
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup.init import Made, add_node, init, renew

FLOORS = FederationOptions(least_nodes=3, least_users=7, corrupt=0.1)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return init(tmp_path / "fed", 3, ["tea", "coffee"], Config(), FLOORS, "fed.example", 7000)


def test_nobody_else_can_read_anything(made: Made) -> None:
    fed = made.server.parent
    for path in (fed, *fed.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_keys_fit_the_roster_and_each_other(made: Made) -> None:
    server = open_server(made.server)
    for index, folder in enumerate(made.nodes):
        node = open_node(folder)
        assert (node.index, node.name, node.roster) == (index, f"node-{index}", server.roster)
        assert (node.least_nodes, node.least_users, node.corrupt) == (3, 7, 0.1)  # what it insists on later
        assert node.identity.public_key().public_bytes_raw() == server.roster[index].key
        public = load_ssh_public_key((made.server / KEYS / f"{node.name}.pub").read_bytes())
        own = read_flower_key(folder).public_key()
        assert public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) == own.public_bytes(
            Encoding.OpenSSH, PublicFormat.OpenSSH
        )
        assert node.agreement == server.agreement
        assert (folder / CATALOGUE).read_text() == "tea\ncoffee\n"
    keys = {open_node(folder).identity.private_bytes_raw() for folder in made.nodes}
    assert len(keys) == 3


def test_nodes_share_a_salt_that_the_server_has_not(made: Made) -> None:
    (salt,) = {open_node(folder).user_salt for folder in made.nodes}
    assert len(salt) == 32
    assert all(salt.hex().encode() not in path.read_bytes() for path in made.server.rglob("*") if path.is_file())


def test_network_settings_go_where_they_belong(made: Made) -> None:
    assert read_network(made.server, ServerNetwork) == ServerNetwork("0.0.0.0", 7000)
    assert read_network(made.nodes[2], NodeNetwork) == NodeNetwork("fed.example:7000")
    (made.nodes[2] / NETWORK).write_text('superlink = "x:1"\nsource = "a \\"b\\".csv"\nheld_out = 0.5\n')
    assert read_network(made.nodes[2], NodeNetwork) == NodeNetwork("x:1", 'a "b".csv', 0.5)
    (made.nodes[2] / NETWORK).write_text("superlin = 3")
    with pytest.raises(FederationError, match="it may set superlink, source, held_out"):
        read_network(made.nodes[2], NodeNetwork)
    with pytest.raises(FederationError, match="is missing"):
        read_network(made.server.parent, NodeNetwork)


def test_an_existing_folder_is_left_alone(made: Made) -> None:
    before = {path: path.read_bytes() for path in made.server.parent.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="never overwritten"):
        init(made.server.parent, 3, ["tea"], Config(), FederationOptions())
    assert before == {path: path.read_bytes() for path in made.server.parent.rglob("*") if path.is_file()}


def test_two_nodes_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fewer than three"):
        init(tmp_path / "fed", 2, ["tea"], Config(), FederationOptions())


def shaken_hands(server: Path, trusted: Path, name: str) -> bool:
    """Whether a client that trusts this authority accepts the server under this name."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / TLS_CERTIFICATE, server / TLS_KEY)
    theirs = ssl.create_default_context(cafile=str(trusted))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(ssl.SSLError, OSError):
                ours.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with socket.create_connection(address, 5) as plain, theirs.wrap_socket(plain, server_hostname=name):
                return True
        except ssl.SSLCertVerificationError:
            return False
        finally:
            thread.join(10)


def test_the_certificate_holds_for_this_server_under_its_names_and_for_nobody_else(made: Made, tmp_path: Path) -> None:
    other = init(tmp_path / "other", 3, ["tea"], Config(), FederationOptions(), "fed.example")
    ours, theirs = made.nodes[0] / CA, other.nodes[0] / CA
    assert shaken_hands(made.server, ours, "fed.example")
    assert shaken_hands(made.server, ours, "127.0.0.1")
    assert not shaken_hands(made.server, ours, "evil.example")
    assert not shaken_hands(made.server, theirs, "fed.example")
    assert not shaken_hands(other.server, ours, "fed.example")


def test_a_renewed_certificate_is_a_new_one_that_nodes_accept_as_they_are(made: Made) -> None:
    before = (made.server / TLS_CERTIFICATE).read_bytes(), (made.server / TLS_KEY).read_bytes()
    path = renew(made.server.parent, "new.example")
    after = path.read_bytes(), (made.server / TLS_KEY).read_bytes()
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert shaken_hands(made.server, made.nodes[0] / CA, "new.example")
    days = x509.load_pem_x509_certificate(after[0])
    assert (days.not_valid_after_utc - days.not_valid_before_utc).days == 825


def test_the_authority_signs_nothing_that_signs(made: Made) -> None:
    certificate = x509.load_pem_x509_certificate((made.server / TLS_CERTIFICATE).read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    authority = x509.load_pem_x509_certificate((made.nodes[0] / CA).read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    certificate.verify_directly_issued_by(authority)


def test_a_node_added_later_is_on_the_servers_roster(made: Made) -> None:
    fed = made.server.parent
    folder = add_node(fed)
    node = open_node(folder)
    assert (node.index, node.name) == (3, "node-3")
    assert (node.least_nodes, node.least_users, node.corrupt) == (3, 7, 0.1)
    assert node.user_salt == open_node(made.nodes[0]).user_salt
    assert node.membership == open_server(made.server).membership
    assert (list(node.roster), node.membership.number, node.roster[3].joined) == ([0, 1, 2, 3], 2, 2)
    assert node.agreement == open_server(made.server).agreement
    assert (made.server / KEYS / "node-3.pub").exists()
    assert read_network(folder, NodeNetwork).superlink == "fed.example:7000"


def test_without_the_authority_nothing_is_signed(made: Made) -> None:
    (made.server.parent / "authority" / "ca.key").unlink()
    with pytest.raises(FederationError, match=r"ca\.key is missing"):
        renew(made.server.parent, "x")
