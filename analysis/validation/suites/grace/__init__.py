"""The suite of GRACE's runs."""
