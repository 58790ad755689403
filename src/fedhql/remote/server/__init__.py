"""The server side of the protocol: listener, roster of members, queries and journal."""
