"""Reactors: threads without the interpreter that own the plain connections of a server; Linux only."""
