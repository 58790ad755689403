"""Federating across firewalls: gRPC with mutual TLS, a durable server, members that reconnect."""
