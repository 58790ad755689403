"""Federating across firewalls: gRPC, mutual TLS, a durable server, members that come and go."""
