"""The certificate, the privacy guarantee and the choice of k: numbers in, numbers out; nothing is trained."""
