"""The shipped models as torch modules, one file per family."""
