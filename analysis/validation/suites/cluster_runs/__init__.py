"""Suites of `cluster_runs.csv`: Bagua, Global-QSGD, NCCL, RaySGD, a cluster shaped by tc."""
