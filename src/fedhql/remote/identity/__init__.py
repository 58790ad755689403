"""Identities: certificates, their authority, TLS credentials and signed masking keys."""
