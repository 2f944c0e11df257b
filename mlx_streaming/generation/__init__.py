"""Prefill, decode, sampling, speculative decoding, MTP head."""
