"""The shipped models as torch modules, a file a family."""
