"""Tests of what commands compute and write: audits, searches, certificates, exhibits."""
