"""Secured connections between hosts."""
