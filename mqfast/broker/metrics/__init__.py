"""Statistics and metrics of a broker: counters, consumer lag, Prometheus text, health probes, HTTP server."""
