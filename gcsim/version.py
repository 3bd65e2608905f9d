"""Version of gcsim."""

__version__ = "0.2.0"
