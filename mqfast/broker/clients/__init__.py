"""The clients of a broker: who is connected, in which groups, and which consumer has which queue.

Room: broker. It must never know the store.
"""
