"""Readers of measured collectives: from benchmarks, training logs, iperf3 and ping."""
