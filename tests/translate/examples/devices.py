"""Names that are about devices."""

from __future__ import annotations

from collections.abc import Mapping

CALLED_PLAINLY = (
    "is_available device_count is_initialized is_bf16_supported init current_device synchronize get_device_name "
    "get_arch_list get_gencode_flags get_device_capability get_device_properties is_tf32_supported ipc_collect "
    "clock_rate power_draw temperature utilization memory_usage list_gpu_processes current_blas_handle "
    "current_solver_handle memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats "
    "memory_stats_as_nested_dict mem_get_info memory_summary memory_cached max_memory_cached reset_peak_memory_stats "
    "reset_max_memory_allocated reset_max_memory_cached reset_accumulated_memory_stats empty_cache memory_snapshot "
    "device_memory_used host_memory_stats host_memory_stats_as_nested_dict reset_accumulated_host_memory_stats "
    "reset_peak_host_memory_stats get_allocator_backend get_per_process_memory_fraction seed seed_all initial_seed "
    "get_rng_state get_rng_state_all current_stream default_stream get_sync_debug_mode graph_pool_handle "
    "is_current_stream_capturing _snapshot _record_memory_history snapshot record_memory_history "
    "current_allocated_memory driver_allocated_memory recommended_max_memory is_capturing_metal "
    "is_metal_capture_enabled get_core_count get_name cudart start stop MemPool Stream Event HostEvent GreenContext"
)

BY_LEAF: Mapping[str, str] = {
    **dict.fromkeys(CALLED_PLAINLY.split(), "f()"),
    "set_device": "f(0)",
    "device": "x.inside(f(0))",
    "device_of": "x.inside(f(t))",
    "can_device_access_peer": "f(0, 0)",
    "caching_allocator_alloc": "m.caching_allocator_delete(f(1024))",
    "caching_allocator_delete": "f(m.caching_allocator_alloc(1024))",
    "caching_allocator_enable": "f(False)",
    "caching_allocator_disabled": "x.inside(f())",
    "change_current_allocator": "f(None)",
    "CUDAPluggableAllocator": "f('allocator.so', 'allocate', 'free')",
    "XPUPluggableAllocator": "f('allocator.so', 'allocate', 'free')",
    "use_mem_pool": "x.inside(f(m.MemPool()))",
    "set_per_process_memory_fraction": "f(0.5)",
    "_dump_snapshot": "f(folder + '/snapshot.pickle')",
    "set_rng_state": "f(m.get_rng_state())",
    "set_rng_state_all": "f(m.get_rng_state_all())",
    "manual_seed": "f(7)",
    "manual_seed_all": "f(7)",
    "default_generators": "f[0]",
    "StreamContext": "x.inside(f(m.current_stream()))",
    "stream": "x.inside(f(m.Stream()))",
    "set_stream": "f(m.current_stream())",
    "ExternalStream": "f(0)",
    "get_stream_from_external": "f(0)",
    "set_sync_debug_mode": "f('warn')",
    "CUDAGraph": "f().reset()",
    "XPUGraph": "f().reset()",
    "MTIAGraph": "f().reset()",
    "graph": "x.captured(m, f, t)",
    "export_dot": "f(folder + '/graph.dot')",
    "export_graph_data": "f(folder + '/graph.pickle')",
    "make_graphed_callables": "f(torch.nn.Linear(4, 4).to(here), (t,))",
    "attach_out_of_memory_observer": "f(print)",
    "lru_cache": "f(maxsize=1)",
    "cast": "f(int, 1)",
    "classproperty": "f(len)",
}
"""The vocabulary that torch.cuda, torch.xpu, torch.mtia and torch.mps share."""

TYPES = "Float Double Half BFloat16 Byte Char Short Int Long Bool".split()
SPARSE = "BFloat16 Byte Char Double Float Half Int Long Short".split()
SWITCHES = "enable_flash_sdp enable_math_sdp enable_mem_efficient_sdp enable_cudnn_sdp".split()
ASKED = "flash_sdp_enabled math_sdp_enabled mem_efficient_sdp_enabled cudnn_sdp_enabled".split()
SDPA = "torch.backends.cuda.SDPAParams(t[None, None], t[None, None], t[None, None], None, 0.0, False, False)"

COMM = {
    "broadcast": "f(c, [0])",
    "broadcast_coalesced": "f([t, t + 1], [0])",
    "gather": "f([t, t], 0, 0)",
    "reduce_add": "f([t], 0)",
    "reduce_add_coalesced": "f([[t, t]], 0)",
    "scatter": "f(c, [0])",
}

DEVICES: Mapping[str, Mapping[str, str]] = {
    "torch.cuda": {
        **{f"{name}Tensor": "f([[1, 0], [0, 1]]) if isinstance(f([1]), f) else None" for name in TYPES},
        **{
            f"{name}Storage": "f(4) if isinstance(f(4), f) else None"
            for name in [*TYPES, "ComplexDouble", "ComplexFloat"]
        },
        "_sleep": "f(1000)",
        "cast": "f(int, 1)",
        "AcceleratorError": "f('text')",
        "OutOfMemoryError": "f('text')",
        "CudaError": "issubclass(f, RuntimeError)",
        "DeferredCudaCallError": "f('text')",
        "cudaStatus": "f.SUCCESS",
        "has_half": "f",
        "has_magma": "f",
        "check_error": "f(0)",
        "cudart": "f().cudaMemGetInfo(0)",
    },
    "torch.cuda.sparse": dict.fromkeys([f"{name}Tensor" for name in SPARSE], "f([[0, 1]], [1, 2], (3,))"),
    "torch.cuda.amp": {
        "autocast": "x.inside(f())",
        "GradScaler": "f().scale(t)",
        "custom_fwd": "f(x.forward)",
        "custom_bwd": "f(x.backward)",
        "amp_definitely_not_available": "f()",
    },
    "torch.cuda.amp.common": {"amp_definitely_not_available": "f()"},
    "torch.cuda.nvtx": {
        "mark": "f('here')",
        "range": "x.inside(f('step {}', 1))",
        "range_end": "f(m.range_start('step'))",
        "range_pop": "[m.range_push('step'), f()][1]",
        "range_push": "[f('step'), m.range_pop()][0]",
        "range_start": "m.range_end(f('step'))",
    },
    "torch.cuda.profiler": {"profile": "x.inside(f())"},
    "torch.cuda.jiterator": dict.fromkeys(
        ("_create_jit_fn", "_create_multi_output_jit_fn"), "f('template <typename T> T f(T x) { return x; }')"
    ),
    "torch.cuda.gds": {
        **dict.fromkeys(("GdsFile", "gds_deregister_buffer", "gds_register_buffer"), "f('name')"),
        "is_available": "f()",
    },
    "torch.cuda.graphs": {
        f"register_graph_{part}_hook": "f(print)"
        for part in ("capture_start", "capture_end", "instantiate", "replay_start", "replay_end", "destroy")
    },
    "torch.cuda.comm": COMM,
    "torch.nn.parallel.comm": COMM,
    "torch.cuda.nccl": {
        "all_gather": "f([t], [t.clone()])",
        "all_reduce": "f([t.clone()])",
        "reduce": "f([t.clone()])",
        "reduce_scatter": "f([t], [t.clone()])",
        "broadcast": "f([t])",
        "is_available": "f([t])",
        "version": "f()",
        "unique_id": "f()",
        "init_rank": "f(1, b'', 0)",
    },
    "torch.cuda.tunable": {
        **dict.fromkeys(
            "enable tuning_enable record_untuned_enable is_enabled tuning_is_enabled record_untuned_is_enabled "
            "get_max_tuning_duration get_max_tuning_iterations get_rotating_buffer_size get_filename get_results "
            "get_validators get_cublaslt_requested_algo_count".split(),
            "f()",
        ),
        **dict.fromkeys(
            "set_max_tuning_duration set_max_tuning_iterations set_numerical_check_tolerances "
            "set_rotating_buffer_size set_cublaslt_requested_algo_count".split(),
            "f(1)",
        ),
        **dict.fromkeys("set_filename read_file tune_gemm_in_file".split(), "f('tunable.csv')"),
        "mgpu_tune_gemm_in_file": "f('tunable*.csv', 1)",
    },
    "torch.backends.cuda": {
        **dict.fromkeys(SWITCHES, "f(True)"),
        **dict.fromkeys(ASKED, "f()"),
        "is_built": "f()",
        "sdp_kernel": "x.inside(f())",
        "allow_fp16_bf16_reduction_math_sdp": "f(False)",
        "fp16_bf16_reduction_math_sdp_allowed": "f()",
        "can_use_flash_attention": f"f({SDPA})",
        "can_use_efficient_attention": f"f({SDPA})",
        "can_use_cudnn_attention": f"f({SDPA})",
        "is_flash_attention_available": "f()",
        "is_ck_sdpa_available": "f()",
        "SDPAParams": SDPA,
        "preferred_blas_library": "f()",
        "preferred_linalg_library": "f()",
        "preferred_rocm_fa_library": "f()",
        "blas_workspace_size": "f()",
        "cublas_workspace_size": "f()",
        "cublaslt_workspace_size": "f()",
        "matmul": "x.set_back(f, 'allow_tf32', True)",
        "cuBLASModule": "f().allow_tf32",
        "cufft_plan_cache": "(f[0].size, f.clear())",
        "cuFFTPlanCache": "f(0)",
        "cuFFTPlanCacheAttrContextProp": "f(None, None)",
        "cuFFTPlanCacheManager": "f()",
    },
    "torch.backends.cudnn": {
        "is_available": "f()",
        "version": "f()",
        "is_acceptable": "f(t)",
        "flags": "x.inside(f(enabled=True, benchmark=True))",
        "set_flags": "f()",
        **dict.fromkeys(
            "enabled benchmark deterministic allow_tf32".split(), "x.set_back(torch.backends.cudnn, name, True)"
        ),
        "benchmark_limit": "f",
        "conv": "f.fp32_precision",
        "rnn": "f.fp32_precision",
        "fp32_precision": "f",
    },
    "torch.backends.cusparselt": dict.fromkeys(("is_available", "version", "get_max_alg_id"), "f()"),
    "torch.version": {"cuda": "f"},
    "torch.mps": {"compile_shader": "f('kernel void f() {}')", "load_metallib": "f('library')"},
    "torch.mps.profiler": {"profile": "x.inside(f())", "metal_capture": "f('trace.gputrace')"},
    "torch.backends.mps": {"is_built": "f()", "is_macos13_or_newer": "f()", "is_macos_or_newer": "f(14, 0)"},
    "torch.mtia": {"DeferredMtiaCallError": "f('text')"},
    "torch.autocast": {"__init__": "x.inside(torch.autocast('cuda'))"},
    "torch.amp.GradScaler": {"__init__": "torch.amp.GradScaler('cuda').scale(t)"},
    "torch.amp": {
        "custom_fwd": "f(x.forward, device_type='cuda')",
        "custom_bwd": "f(x.backward, device_type='cuda')",
        "is_autocast_available": "f('cuda')",
    },
    "torch": {
        "Generator": "f('cuda').manual_seed(1)",
        "get_autocast_dtype": "f('cuda')",
        "set_autocast_dtype": "f('cuda', torch.get_autocast_dtype('cuda'))",
        "is_autocast_enabled": "(f(), f('cuda'))",
        "set_autocast_enabled": "(f(False), f('cuda', False))",
        "get_autocast_gpu_dtype": "f()",
        "set_autocast_gpu_dtype": "f(torch.get_autocast_gpu_dtype())",
        "set_default_tensor_type": "(f(torch.cuda.FloatTensor), f(torch.FloatTensor))",
        "load": "f(x.saved(t, folder), map_location='cuda')",
        "compile": "f(torch.nn.Linear(4, 4).to(here), mode='reduce-overhead')(t)",
    },
    "torch.Tensor": {
        **dict.fromkeys(("cuda", "xpu", "mtia"), "f(c)"),
        "type": "f(t, torch.cuda.HalfTensor)",
        "pin_memory": "f(c, 'cuda')",
        "is_pinned": "f(c, 'cuda')",
        "record_stream": "f(t, torch.cuda.current_stream())",
    },
    "torch.nn.Module": dict.fromkeys(("cuda", "xpu", "mtia"), "f(torch.nn.Linear(4, 4)).weight.device"),
    "torch.UntypedStorage": {
        "cuda": "f(c.untyped_storage())",
        "__new__": "torch.UntypedStorage(4, device='cuda').device",
    },
    "torch.TypedStorage": {"cuda": "f(c.storage())"},
    "torch.serialization": {"default_restore_location": "f(c.untyped_storage(), 'cuda:0')"},
    "torch.jit": {"load": "f(x.scripted(folder), map_location='cuda')"},
    "torch.utils.data.DataLoader": {
        "__init__": "next(iter(torch.utils.data.DataLoader(c, pin_memory=True, pin_memory_device='cuda')))"
    },
    "torch.accelerator": {"synchronize": "f('cuda')"},
    "torch.random": {"fork_rng": "x.inside(f(device_type='cuda'))"},
    "torch.autograd.profiler.emit_nvtx": {"__init__": "x.inside(torch.autograd.profiler.emit_nvtx())"},
    "torch.profiler.profile": {"__init__": "x.inside(torch.profiler.profile(activities=x.cuda_activities))"},
    "torch.profiler": {"supported_activities": "f()"},
}
