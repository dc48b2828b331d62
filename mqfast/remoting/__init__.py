"""Remoting: RocketMQ's frames over TCP, for servers and clients.

Reading order: ``codes.py`` numbers, ``codec.pyx`` bytes <-> commands, ``headers.pyx`` and ``bodies.py`` headers and
bodies as types, ``connection.pyx`` a connection without I/O, ``server.py`` and ``client.py`` for asyncio.

Protocol: Apache RocketMQ's NettyEncoder, NettyDecoder, RemotingCommand. The store is not imported.
"""
