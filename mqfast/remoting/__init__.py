"""Remoting: RocketMQ's frames over TCP, both ends.

Reading order: ``codes.py`` numbers, ``codec.pyx`` bytes <-> commands, ``headers.pyx`` and ``bodies.py`` what commands
carry, ``connection.py`` one connection without I/O, ``server.py`` and ``client.py`` the asyncio shell around it.

This room must never import the store. Protocol: Apache RocketMQ's NettyEncoder, NettyDecoder, RemotingCommand.
"""
