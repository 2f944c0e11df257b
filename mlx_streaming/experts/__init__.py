"""Expert memory: source, pool, policy, reader, streamed layer, look-ahead, plan."""
