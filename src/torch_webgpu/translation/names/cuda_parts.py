"""The modules below ``torch.cuda``, and ``torch.backends`` of NVIDIA's libraries."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.translation.rows import Row, emulated, error, nothing, questions, rows, same, translated

RANGES = "a range of torch.profiler"
NSIGHT = "no profiler of NVIDIA's can watch the device; torch.profiler and torch.webgpu.profile do"
COPIES = "by copies and sums; between two WebGPU adapters they go through the host"
TUNED = "matrix products are not chosen by TunableOp; torch.webgpu picks its kernels by their shapes"


def amp() -> Iterator[Row]:
    yield from rows(
        "torch.cuda.amp", "autocast GradScaler", same("through torch.amp's, which takes cuda for the target")
    )
    yield from rows("torch.cuda.amp", "custom_fwd custom_bwd", translated("amp:{leaf}", "torch.amp's, for the target"))
    yield from questions("torch.cuda.amp", "amp_definitely_not_available", emulated("runtime:no"))
    yield from questions("torch.cuda.amp.common", "amp_definitely_not_available", emulated("runtime:no"))


def tools() -> Iterator[Row]:
    """NVIDIA's tools."""
    yield from rows(
        "torch.cuda.nvtx", "mark range range_end range_pop range_push range_start", emulated("nvtx:{leaf}", RANGES)
    )
    yield from rows("torch.cuda.profiler", "start stop", nothing(NSIGHT))
    yield from rows("torch.cuda.profiler", "profile", nothing(NSIGHT, "profiling:profile"))
    yield from rows("torch.autograd.profiler.emit_nvtx", "__init__", nothing(NSIGHT, "constructors:emit_nvtx_init"))
    source = error("CUDA C++ is not compiled here; write the function with PyTorch's operators and torch.compile it")
    yield from rows("torch.cuda.jiterator", "_create_jit_fn _create_multi_output_jit_fn", source)
    files = error("GPUDirect Storage is NVIDIA's; read with torch.from_file or numpy.fromfile and copy to the device")
    yield from rows("torch.cuda.gds", "GdsFile gds_deregister_buffer gds_register_buffer", files)
    yield from questions("torch.cuda.gds", "is_available", emulated("runtime:no"))
    green = error("the device's processors cannot be divided among contexts; use one stream")
    yield from rows("torch.cuda.green_contexts", "GreenContext", green)


def several_devices() -> Iterator[Row]:
    copied = emulated("comm:{leaf}", COPIES)
    names = "broadcast broadcast_coalesced gather reduce_add reduce_add_coalesced scatter"
    yield from rows("torch.cuda.comm", names, copied)
    yield from rows("torch.nn.parallel.comm", names, copied)
    yield from rows("torch.cuda.nccl", "all_gather all_reduce reduce reduce_scatter", copied)
    yield from rows("torch.cuda.nccl", "broadcast", emulated("comm:nccl_broadcast", COPIES))
    yield from questions("torch.cuda.nccl", "is_available", emulated("comm:nccl_is_available", COPIES))
    absent = error(
        "there is no NCCL; torch.distributed.init_process_group('nccl') is answered by the target's own backend"
    )
    yield from rows("torch.cuda.nccl", "version unique_id init_rank", absent)


def tunable() -> Iterator[Row]:
    names = "enable tuning_enable record_untuned_enable set_filename set_max_tuning_duration set_max_tuning_iterations"
    yield from rows("torch.cuda.tunable", names, nothing(TUNED))
    yield from rows("torch.cuda.tunable", "set_numerical_check_tolerances set_rotating_buffer_size", nothing(TUNED))
    yield from rows("torch.cuda.tunable", "tune_gemm_in_file mgpu_tune_gemm_in_file", nothing(TUNED))
    yield from rows("torch.cuda.tunable", "set_cublaslt_requested_algo_count", nothing(TUNED))
    yield from rows("torch.cuda.tunable", "read_file", nothing(TUNED, "runtime:no"))
    yield from rows(
        "torch.cuda.tunable", "is_enabled tuning_is_enabled record_untuned_is_enabled", emulated("runtime:no")
    )
    numbers = (
        "get_max_tuning_duration get_max_tuning_iterations get_rotating_buffer_size get_cublaslt_requested_algo_count"
    )
    yield from rows("torch.cuda.tunable", numbers, emulated("runtime:zero", "nothing is tuned"))
    yield from rows("torch.cuda.tunable", "get_filename", emulated("runtime:no_text", "nothing is tuned"))
    yield from rows("torch.cuda.tunable", "get_results get_validators", emulated("runtime:none_of", "nothing is tuned"))


def libraries() -> Iterator[Row]:
    """``torch.backends``"""
    yield from questions("torch.backends.cuda", "is_built", emulated("devices:is_available"))
    switches = "enable_flash_sdp enable_math_sdp enable_mem_efficient_sdp enable_cudnn_sdp"
    asked = "flash_sdp_enabled math_sdp_enabled mem_efficient_sdp_enabled cudnn_sdp_enabled"
    unread = same("PyTorch keeps the setting; attention on the device is one fused kernel in any case")
    yield from rows("torch.backends.cuda", f"{switches} {asked} sdp_kernel", unread)
    names = "allow_fp16_bf16_reduction_math_sdp fp16_bf16_reduction_math_sdp_allowed"
    yield from rows("torch.backends.cuda", names, same("PyTorch keeps the setting; sums are in float32 in any case"))
    names = "can_use_flash_attention can_use_efficient_attention can_use_cudnn_attention is_flash_attention_available"
    # PyTorch's ask the driver in a build for CUDA, which fails where there is none.
    yield from rows("torch.backends.cuda", names, emulated("runtime:no", "about CUDA's own kernels"))
    yield from rows("torch.backends.cuda", "is_ck_sdpa_available SDPAParams", same("about CUDA's own kernels: no"))
    names = "preferred_blas_library preferred_linalg_library preferred_rocm_fa_library"
    yield from rows("torch.backends.cuda", names, same("PyTorch keeps the setting; there is one library"))
    names = "blas_workspace_size cublas_workspace_size cublaslt_workspace_size"
    yield from rows("torch.backends.cuda", names, emulated("runtime:zero", "no workspace is kept"))
    precision = "PyTorch keeps the settings; `allow_tf32` and `fp32_precision` are for the device's products, too"
    yield from rows("torch.backends.cuda", "matmul cuBLASModule", same(precision))
    yield from rows("torch.backends.cuda", "cufft_plan_cache", emulated("runtime:{leaf}", "empty: no plans are kept"))
    names = "cuFFTPlanCache cuFFTPlanCacheAttrContextProp cuFFTPlanCacheManager"
    yield from rows("torch.backends.cuda", names, same("the classes of CUDA's own cache"))
    yield from questions("torch.backends.cudnn", "is_available", emulated("devices:is_available"))
    yield from rows(
        "torch.backends.cudnn",
        "is_acceptable version flags set_flags",
        same("PyTorch keeps the settings; there is no cuDNN that reads them"),
    )
    kept = same("PyTorch keeps the setting; there is no cuDNN that reads it, and kernels are picked by shape")
    yield from rows(
        "torch.backends.cudnn",
        "enabled benchmark benchmark_limit deterministic allow_tf32 conv rnn fp32_precision",
        kept,
    )
    yield from rows(
        "torch.backends.cusparselt", "is_available version get_max_alg_id", same("no: there is no cuSPARSELt")
    )
    yield from rows("torch.version", "cuda", same("None: PyTorch's own build"))


def all_rows() -> Iterator[Row]:
    """Every row of this file."""
    for part in (amp, tools, several_devices, tunable, libraries):
        yield from part()
