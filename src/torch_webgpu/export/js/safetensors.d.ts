import type {Tensor} from './index.js';

/** The tensors of a .safetensors file by name. */
export function readSafetensors(file: ArrayBuffer): Record<string, Tensor>;
