"""Fetches web pages from public addresses alone, and finds their readable text."""
