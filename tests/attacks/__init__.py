"""Tests of the attacks: their definitions, their budgets, and that they bite."""
