"""`sparsefed certify`: from a config or a run folder to a certificate."""
