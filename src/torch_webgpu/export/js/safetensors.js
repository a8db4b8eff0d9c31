import {decode} from './tensor.js';

/**
 * @typedef {import('./tensor.js').DType} DType
 * @typedef {import('./tensor.js').Tensor} Tensor
 */

/** @type {Record<string, DType>} */
const SAFETENSORS = {
  F32: 'float32', F16: 'float16', BF16: 'bfloat16', I64: 'int64', I32: 'int32', U32: 'uint32', I16: 'int16', U16: 'uint16',
  I8: 'int8', U8: 'uint8', BOOL: 'bool', C64: 'complex64',
};

/**
 * The tensors of a .safetensors file by name.
 * @param {ArrayBuffer} file
 * @returns {Record<string, Tensor>}
 */
export function readSafetensors(file) {
  const size = Number(new DataView(file).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, size)));
  delete header.__metadata__;
  return Object.fromEntries(Object.entries(header).map(([name, {dtype, shape, data_offsets: [from, to]}]) =>
    [name, decode(SAFETENSORS[dtype], shape, file.slice(8 + size + from, 8 + size + to))]));
}
