"""Runs code that nobody has read: in a fence of namespaces, Landlock and seccomp, or on a server."""
