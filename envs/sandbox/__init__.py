"""Runs code that nobody has read: in a fence of namespaces and seccomp, or on a server."""
