"""Programs written for CUDA (XPU, MPS, MTIA) on the device that is here.

Four things together: the user's modules are rewritten when they are imported, so that "cuda" in them is the name of
the device that is there (:mod:`.rewrite`, :mod:`.importing`); PyTorch takes "cuda" as an argument (:mod:`.alias`);
``torch.cuda`` answers (:mod:`.table`); and what was translated is counted (:mod:`.monitor`).
:mod:`torch_webgpu.translate` is what programs use.
"""
