"""What a run leaves on disk, and what is read off it again. Needs no torch, jax or gymnasium."""
