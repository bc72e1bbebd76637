"""Postroad for programs without an event loop: the names of `postroad`, blocking."""

from postroad.client.connection import ClientConfig
from postroad.client.sync import Client, Message, Publisher, Subscription, connect

__all__ = ["Client", "ClientConfig", "Message", "Publisher", "Subscription", "connect"]
