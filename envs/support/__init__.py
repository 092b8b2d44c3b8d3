"""What several parts of the environments need: caches, clients, event loops, files, texts, checks of configurations."""
