"""Tests of the package, on one broker of their own."""
