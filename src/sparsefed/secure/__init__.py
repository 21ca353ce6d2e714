"""Secure aggregation with proven norms: two servers learn the sum of the updates, and that none is too long."""
