"""Advertisements, and questions about admission, as an application sees them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad.core.protocol.admission import (
    MILLI,
    AdmissionExplained,
    AdmissionState,
    AskAdmission,
    ExplainAdmission,
)
from postroad.core.session.events import AdvertisementAccepted, AdvertisementEnded, AdvertisementFailed
from postroad.errors import InvalidValueError, UnfinishedError

if TYPE_CHECKING:
    from postroad.client.connection import Client


class Advertisement:
    """What a client said it would publish. Made by `Client.advertise`.

    It ends with the client, unless it has a name; `Client.unadvertise` ends it before.

    ```python
    advertisement = await client.advertise("symbol = 'ACME'", max_rate=500)
    print(advertisement.max_rate)  # what the broker allows, in messages per second
    await client.unadvertise(advertisement)
    ```
    """

    def __init__(self, key: int, filter_text: str, name: str | None) -> None:
        self.key: Final = key
        self.filter: Final = filter_text
        self.name: Final = name
        self.max_rate = 0.0  # messages per second that the broker allows
        self.accepted: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"Advertisement({self.filter!r}, max_rate={self.max_rate:g}, name={self.name!r})"


class ClientAdmission:
    """The advertisements of one client."""

    def __init__(self, client: Client) -> None:
        self._client: Final = client
        self._advertisements: dict[int, Advertisement] = {}
        self._endings: dict[int, asyncio.Future[None]] = {}

    async def advertise(self, text: str, max_rate: float | None, name: str | None, timeout: float | None) -> Advertisement:
        if max_rate is not None and not 0.001 <= max_rate <= 1e12:
            raise InvalidValueError(f"a rate is at least 0.001 messages per second, not {max_rate}")
        millirate = 0 if max_rate is None else round(max_rate * MILLI)
        key = self._client.session.advertise(text, millirate, name)
        made = self._advertisements[key] = Advertisement(key, text, name)
        self._client._plan_pump()
        try:
            async with asyncio.timeout(timeout):
                await made.accepted
        except BaseException as error:
            if self._advertisements.pop(key, None) is not None:
                self._client.session.unadvertise(key)
                self._client._plan_pump()
            if isinstance(error, TimeoutError):
                raise UnfinishedError(f"no broker accepted the advertisement within {timeout:g} s") from None
            raise
        return made

    async def withdraw(self, advertisement: Advertisement | None, name: str | None, timeout: float | None) -> None:
        if (advertisement is None) == (name is None):
            raise InvalidValueError("give an advertisement or the name of a durable one")
        key = None if advertisement is None else advertisement.key
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if key is not None:
            if key not in self._advertisements:
                return
            self._endings[key] = ended
            self._client.session.unadvertise(key)
        else:
            self._endings[self._client.session.unadvertise(name=name)] = ended
        self._client._plan_pump()
        try:
            async with asyncio.timeout(timeout):
                await ended
        except TimeoutError:
            raise UnfinishedError(f"no broker confirmed the end of the advertisement within {timeout:g} s") from None

    async def explain(self, text: str, admission: str) -> AdmissionExplained:
        answer = await self._client._ask_broker(ExplainAdmission(text, admission))
        assert isinstance(answer, AdmissionExplained)
        return answer

    async def state(self, nodes: int) -> AdmissionState:
        answer = await self._client._ask_broker(AskAdmission(nodes))
        assert isinstance(answer, AdmissionState)
        return answer

    def told(self, event: AdvertisementAccepted | AdvertisementFailed | AdvertisementEnded) -> None:
        match event:
            case AdvertisementAccepted(key, millirate):
                made = self._advertisements.get(key)
                if made is not None:
                    made.max_rate = millirate / MILLI
                    if not made.accepted.done():
                        made.accepted.set_result(None)
            case AdvertisementFailed(key, error):
                made = self._advertisements.pop(key, None)
                if made is not None and not made.accepted.done():
                    made.accepted.set_exception(error)
            case AdvertisementEnded(key, failure):
                self._advertisements.pop(key, None)
                ended = self._endings.pop(key, None)
                if ended is not None and not ended.done():
                    if failure is None:
                        ended.set_result(None)
                    else:
                        ended.set_exception(failure)

    def failed(self, error: Exception) -> None:
        for future in [*(each.accepted for each in self._advertisements.values()), *self._endings.values()]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may have given up
