"""Who may do what: accounts of ACL 1.0 (``plain_acl.yml``), users and rules of ACL 2.0, the guard before handlers.

Room: broker/acl. It must never serve a message or know the store.
"""
