"""What everything else may use: records, errors in words, sums, sharded tensors. Imports nothing of ours."""
