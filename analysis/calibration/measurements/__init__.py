"""Which collectives were measured? Readers of benchmarks and of training's logs, iperf3, ping."""
