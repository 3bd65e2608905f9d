"""Readers of measured collectives: benchmarks and training's logs, iperf3, ping."""
