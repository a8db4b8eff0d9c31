"""``torch.compile``: one plan a graph, replayed without Python per operator."""
