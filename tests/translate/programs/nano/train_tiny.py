# a config: what is different for tiny data
device = "cuda"
dtype = "float32"
max_iters = 12
learning_rate = 1e-2
