"""How does a result look in a browser? One HTML file that needs nothing else."""
