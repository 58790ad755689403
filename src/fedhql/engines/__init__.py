"""What computes a run: the message engine, the compiled engine, and the choice between them."""
