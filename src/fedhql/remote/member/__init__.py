"""A member's side of a federation: its connection, its agent and its masks."""
