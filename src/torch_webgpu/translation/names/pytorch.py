"""Names of PyTorch's that are about no device in particular: what they are on the CPU they are on every other."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.translation.rows import SAME, Row, emulated, error, removed, rows, same

NAMES = {
    "torch.distributed": (
        "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced "
        "all_to_all_single barrier batch_isend_irecv breakpoint broadcast broadcast_object_list "
        "destroy_process_group gather gather_object "
        "get_global_rank get_group_rank get_node_local_rank get_pg_count get_process_group_ranks get_rank "
        "get_world_size irecv is_available is_gloo_available is_initialized is_mpi_available "
        "is_torchelastic_launched is_ucc_available is_xccl_available isend monitored_barrier "
        "recv recv_object_list reduce reduce_scatter reduce_scatter_tensor "
        "register_rendezvous_handler rendezvous scatter scatter_object_list send send_object_list "
        "supports_complex"
    ),
    "torch.distributions": ("kl_divergence register_kl"),
    "torch.export": ("default_decompositions dims export load register_dataclass save unflatten"),
    "torch.func": (
        "debug_unwrap functional_call functionalize grad grad_and_value hessian jacfwd jacrev jvp linearize "
        "replace_all_batch_norm_modules_ stack_module_state vjp vmap"
    ),
    "torch.futures": ("cast collect_all wait_all"),
    "torch.fx": ("has_side_effect map_arg replace_pattern symbolic_trace wrap"),
    "torch.jit": (
        "annotate contextmanager enable_onednn_fusion export export_opnames fork freeze fuser ignore interface "
        "is_scripting is_tracing isinstance jit_module_from_flatbuffer onednn_fusion_enabled optimize_for_inference "
        "optimized_execution run_frozen_optimizations save save_jit_module_to_flatbuffer script script_if_tracing "
        "script_method set_fusion_strategy set_module trace trace_module unused wait"
    ),
    "torch.masked": (
        "amax amin argmax argmin as_masked_tensor cumprod cumsum is_masked_tensor log_softmax logaddexp logsumexp "
        "masked_tensor mean median norm normalize prod softmax softmin std sum var"
    ),
    "torch.multiprocessing": (
        "active_children current_process get_all_sharing_strategies get_sharing_strategy init_reductions "
        "parent_process set_sharing_strategy spawn start_processes"
    ),
    "torch.nested": ("as_nested_tensor masked_select narrow nested_tensor nested_tensor_from_jagged"),
    "torch.nn": ("factory_kwargs"),
    "torch.onnx": (
        "export is_in_onnx_export register_custom_op_symbolic select_model_mode_for_export "
        "unregister_custom_op_symbolic"
    ),
    "torch.package": ("is_from_package"),
    "torch.profiler": ("is_fbcode register_optimizer_step_post_hook schedule tensorboard_trace_handler"),
    "torch.quantization": (
        "add_quant_dequant convert convert_dynamic_jit convert_jit default_eval_fn disable_fake_quant "
        "disable_observer enable_fake_quant enable_observer fuse_conv_bn fuse_conv_bn_jit fuse_conv_bn_relu "
        "fuse_linear_bn fuse_modules get_default_compare_output_module_list get_default_dynamic_quant_module_mappings "
        "get_default_float_to_quantized_operator_mappings get_default_qat_module_mappings get_default_qat_qconfig "
        "get_default_qconfig get_default_qconfig_propagation_list get_default_static_quant_module_mappings "
        "get_dynamic_quant_module_class get_fuser_method get_observer_state_dict get_quantized_operator "
        "get_static_quant_module_class load_observer_state_dict no_observer_set prepare prepare_dynamic_jit "
        "prepare_jit prepare_qat propagate_qconfig_ qconfig_equals quantize quantize_dynamic quantize_dynamic_jit "
        "quantize_jit quantize_qat script_qconfig script_qconfig_dict swap_module"
    ),
    "torch.sparse": ("as_sparse_gradcheck sum"),
    "torch.testing": ("assert_allclose assert_close make_tensor"),
    "torch.utils": ("get_cpp_backtrace set_module swap_tensors"),
}
"""Module → names that work on the target as they are."""

GLOO = "of the tensors of the CPU alone: gloo takes no others on this device"
QUANTIZED = (
    "of models on the CPU. On webgpu observers, fake quantization and quantized tensors work, a model that was "
    "quantized dynamically runs its products on the CPU (counted), and static quantization does not work: what "
    "`convert` makes raises NotImplementedError when it packs its weights; `model.cpu()` before `convert`, and keep it "
    "there"
)
NESTED = (
    "strided and jagged: what PyTorch's kernels of nested tensors compute from their buffers is right; an operator "
    "that has no nested kernel raises"
)

NOTES = {"torch.quantization": QUANTIZED, "torch.nested": NESTED}

REMOVED = {
    "torch.export.export_for_training": "torch.export.export",
    "torch.export.compatibility": "a decorator of its own use",
    "torch.onnx.dynamo_export": "torch.onnx.export(…, dynamo=True)",
    "torch.onnx.enable_fake_mode": "torch.onnx.export of a model made under FakeTensorMode",
    "torch.onnx.is_onnxrt_backend_supported": "its backend is gone, too",
}
"""Names that newer versions of PyTorch have no more, and what to do instead."""

SEMI_STRUCTURED = "2:4 sparsity is computed by the tensor cores of CUDA devices; use the dense tensor"
UNSPLIT = "Gloo's process groups are not split; torch.distributed.new_group() makes one of the same ranks"
OWNED = "the name of the private device is webgpu's, and can be given once in a process; use torch.device('webgpu')"


def all_rows() -> Iterator[Row]:
    """Every row of this file."""
    for module, names in NAMES.items():
        if module == "torch.distributed":
            yield from rows(module, names, SAME, mps=same(GLOO))
            continue
        yield from rows(module, names, same(NOTES[module]) if module in NOTES else SAME)
    for name, note in REMOVED.items():
        module, _, leaf = name.rpartition(".")
        yield from removed(module, leaf, note)
    lists = "by all_to_all_single: gloo takes lists since PyTorch 2.12, of tensors of one size"
    on_mps = emulated("distributed:{leaf}", f"{GLOO}; {lists}")
    yield from rows("torch.distributed", "all_to_all", SAME, cpu=emulated("distributed:{leaf}", lists), mps=on_mps)
    yield from rows("torch.distributed", "split_group", error(UNSPLIT), webgpu=SAME, xpu=SAME)
    yield from rows("torch.sparse", "to_sparse_semi_structured", error(SEMI_STRUCTURED))
    yield from rows("torch.utils", "rename_privateuse1_backend generate_methods_for_privateuse1_backend", same(OWNED))
