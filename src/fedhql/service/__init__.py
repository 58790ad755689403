"""A federation over the network, for the operator of its server and for the owner of a member."""
