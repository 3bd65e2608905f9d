"""Is what was predicted also measured, here and now? Real Gloo ranks in network namespaces."""
