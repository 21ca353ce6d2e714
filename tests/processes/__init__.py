"""Tests that start processes and kill, interrupt or starve them."""
