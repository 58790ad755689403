"""A member's side of the wire: its connection, its agent and its masks."""
