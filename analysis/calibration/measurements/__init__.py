"""Which collectives were measured? Readers of CSV tables and of the benchmarks' own output."""
