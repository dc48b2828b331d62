"""The MCP server of clusters (``mqfast mcp``): tools for language models, over the queries of the console.

Must never change a cluster without a plan that was confirmed, or show a body of a message unless told to.
"""
