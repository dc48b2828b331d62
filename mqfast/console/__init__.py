"""The web console of clusters (``mqfast console``): a process of its own, with one collector and server-made pages.

Must never run inside a broker, and never change a cluster unless changes are allowed.
"""
