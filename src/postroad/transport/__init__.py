"""Framed connections on asyncio, used alike by brokers and clients."""
