"""The engine: RocketMQ's message store. It knows nothing of sockets, asyncio or Spark, and importing it does not
import numpy.
"""
