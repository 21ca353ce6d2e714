"""Tests of the HTML pages, by hand and in a real browser."""
