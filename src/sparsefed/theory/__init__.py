"""The certificate and the choice of k: numbers in, numbers out; trains nothing."""
