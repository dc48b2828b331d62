"""Fail-over by leases of etcd: at most one master at a time. No knowledge of brokers."""
