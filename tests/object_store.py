"""A store that speaks S3, for tests: moto's server in a process of its own, on the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.integration.brokers import wait_until

from postroad.testing import free_ports

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
START_S = 60.0


@contextmanager
def object_store(bucket: str = "archive") -> Iterator[dict[str, str]]:
    """Run a store with one bucket; give the environment variables by which it is reached, which are set meanwhile.

    It cannot be a thread here: some clients wait for an answer without letting other threads run.
    """
    from pyarrow.fs import S3FileSystem

    (port,) = free_ports(1)
    program = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), START_S)
        address = f"127.0.0.1:{port}"
        variables = {**VARIABLES, "AWS_ENDPOINT_URL": f"http://{address}"}
        with patch.dict(os.environ, variables):
            files = S3FileSystem(endpoint_override=address, scheme="http", allow_bucket_creation=True)
            files.create_dir(bucket)
            yield variables
    finally:
        server.terminate()
        server.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
