"""Access control: accounts of ACL 1.0 (``plain_acl.yml``), users and rules of ACL 2.0, the filter before handlers.

Serves no messages and does not use the store.
"""
