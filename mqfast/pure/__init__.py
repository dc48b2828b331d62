"""Clients without compiled code: a Python form of each compiled module that a client imports.

``form.py`` finds the forms at import. A module of this folder is imported under the name of a compiled module, never
under another name. Behaviour is that of the compiled module; the docstrings there describe each
part. The store and the servers have no such form.
"""
