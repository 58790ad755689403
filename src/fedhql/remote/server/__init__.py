"""The server's side of the wire: listener, roster of members, queries and journal."""
