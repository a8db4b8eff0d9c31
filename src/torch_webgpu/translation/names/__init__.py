"""The rows of the compatibility matrix, in the words of :mod:`..rows`."""
