"""Postroad for programs without an event loop: the names of `postroad`, blocking."""

from postroad.client.connection import ClientConfig
from postroad.client.sync import Client, Delivery, Message, Publisher, Subscription, WorkQueue, connect

__all__ = ["Client", "ClientConfig", "Delivery", "Message", "Publisher", "Subscription", "WorkQueue", "connect"]
