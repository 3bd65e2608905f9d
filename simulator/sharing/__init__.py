"""How fast do flows run that share links? Max-min fairness."""
