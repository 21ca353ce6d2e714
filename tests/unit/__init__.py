"""Tests of single parts: data, models, engines, configs, theory, the layout and the documentation."""
