"""A broker's part in replication: the log through ``mqfast.ha``, the tables by requests to the master."""
