"""The suites, a folder a source of measurements; `registry.py` names them."""
