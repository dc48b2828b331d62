"""Fail-over by leases of etcd: one master at a time. Knows no broker."""
