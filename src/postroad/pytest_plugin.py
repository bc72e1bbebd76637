"""Fixtures for the tests of programs that use Postroad. pytest finds them when Postroad is installed.

| fixture | what a test gets |
|---|---|
| `postroad_url` | the address of a broker of its own, with an empty data directory and queues |
| `postroad_client` | a blocking client that is connected to it |

A broker takes about a tenth of a second to start. `POSTROAD_URL` names it during the test, so that a program under test that
calls `postroad.connect()` without an address uses it as well.

```python
def test_a_large_order_is_announced(postroad_client):
    orders = postroad_client.subscribe("total > 100")
    postroad_client.publish({"total": 120.5})
    assert orders.get(timeout=5)["total"] == 120.5
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import postroad.sync


@pytest.fixture
def postroad_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a broker for this test and give its address; `POSTROAD_URL` names it, too.

    ```python
    async def test_the_program_publishes(postroad_url):
        async with postroad.connect(postroad_url) as client: ...
    ```
    """
    import postroad.testing  # noqa: PLC0415  # loaded by the tests that use it, not by every run of pytest

    with postroad.testing.broker() as url:
        monkeypatch.setenv("POSTROAD_URL", url)
        yield url


@pytest.fixture
def postroad_client(postroad_url: str) -> Iterator[postroad.sync.Client]:
    """Connect a blocking client to the broker of this test.

    ```python
    def test_a_job_is_put(postroad_client):
        postroad_client.queue("jobs").put(b"resize 17.png")
        assert postroad_client.queue("jobs").take(timeout=5).payload == b"resize 17.png"
    ```
    """
    import postroad.sync  # noqa: PLC0415  # see above

    with postroad.sync.connect(postroad_url) as client:
        yield client
