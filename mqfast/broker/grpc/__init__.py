"""The calls of RocketMQ's 5.x SDKs (gRPC, API 2) on a broker, answered by the handlers of remoting and by POP."""
