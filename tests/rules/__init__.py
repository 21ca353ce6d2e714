"""Tests of the aggregation rules and the kernels they stand on."""
