"""The engine: RocketMQ's message store, without sockets, asyncio or Spark. Importing it does not import numpy."""
