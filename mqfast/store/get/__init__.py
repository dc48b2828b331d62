"""The Python side of a get and a query: results and their columns."""
