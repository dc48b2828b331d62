"""Metadata of a broker: topics, subscription groups, connected clients, and registration at name servers."""
