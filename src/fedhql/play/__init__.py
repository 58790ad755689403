"""Watch policies play: episodes with frames, pictures of several of them, files and windows."""
