/**
 * @typedef {'float32'|'float16'|'bfloat16'|'int64'|'int32'|'uint32'|'int16'|'uint16'|'int8'|'uint8'|'bool'|'complex64'} DType
 * @typedef {number | bigint | boolean | ArrayBufferView | Tensor | Nested[]} Feed what a tensor can be made of
 * @typedef {number | bigint | boolean | ArrayBufferView | Array<any>} Nested
 */

/** The array that a dtype's elements lie in as on the GPU. @type {Record<string, any>} */
const ARRAYS = {
  float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, int64: BigInt64Array, int32: Int32Array,
  uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
  complex64: Float32Array,
};
/** Half-precision numbers are Float32Arrays in a page: of 16 bits, and to the nearest of them, ties to even. */
const HALVES = {
  float16: {
    /** @param {Uint16Array} bits */ from: bits => Float32Array.from(new Float16Array(bits.buffer)),
    /** @param {Float32Array} values */ to: values => Float16Array.from(values),
  },
  bfloat16: {
    /** @param {Uint16Array} bits */ from: bits => new Float32Array(Uint32Array.from(bits, b => b << 16).buffer),
    /** @param {Float32Array} values */ to: values => Uint16Array.from(new Uint32Array(Float32Array.from(values).buffer),
      b => (b << 1 >>> 0) > 0xff000000 ? 0x7fc0 : b + 0x7fff + (b >>> 16 & 1) >>> 16),
  },
};

/** @param {number[]} shape */
export const numel = shape => shape.reduce((a, b) => a * b, 1);
/** How many numbers of the array an element is. @param {DType} dtype */
const width = dtype => dtype === 'complex64' ? 2 : 1;
/** @param {string} dtype */
export const isDType = dtype => Object.hasOwn(ARRAYS, dtype);
/** @param {DType} dtype @param {number[]} shape */
export const sizeBytes = (dtype, shape) => numel(shape) * width(dtype) * ARRAYS[dtype].BYTES_PER_ELEMENT;

/** A tensor on the host: `data` is a typed array in C order. float16 and bfloat16 are Float32Arrays, bool a Uint8Array. */
export class Tensor {
  /**
   * @param {DType} dtype
   * @param {ArrayBufferView | ArrayLike<any>} data
   * @param {number[]} shape
   */
  constructor(dtype, data, shape) {
    if (!isDType(dtype)) throw new TypeError(`there is no dtype ${dtype}: ${Object.keys(ARRAYS).join(', ')}`);
    const half = dtype in HALVES, A = half ? Float32Array : ARRAYS[dtype];
    if (!(data instanceof A)) {
      const numbers = Array.from(/** @type {ArrayLike<any>} */ (data));
      data = A === BigInt64Array ? BigInt64Array.from(numbers, BigInt) : A.from(dtype === 'bool' ? numbers.map(Boolean) : numbers, Number);
    }
    this.dtype = dtype;
    this.shape = shape;
    /** @type {any} */ this.data = data;
    if (this.data.length !== numel(shape) * width(dtype)) throw new RangeError(`${this.data.length} numbers for a tensor of shape [${shape}]`);
  }

  /** The only element, as a number, a bigint (int64) or a boolean. */
  item() {
    if (numel(this.shape) !== 1) throw new RangeError(`a tensor of shape [${this.shape}] has no one item`);
    return this.tolist().flat(Infinity)[0];
  }

  /** The elements in nested arrays. @returns {any[]} */
  tolist() {
    let list = this.dtype === 'bool' ? Array.from(this.data, Boolean) : Array.from(this.data);
    const shape = width(this.dtype) > 1 ? [...this.shape, 2] : this.shape;
    for (const size of shape.slice(1).reverse()) {
      const rows = [];
      for (let k = 0; k < list.length; k += size) rows.push(list.slice(k, k + size));
      list = size ? rows : Array.from({length: numel(shape.slice(0, -1))}, () => []);
    }
    return list;
  }
}

/** Whether a feed is a tensor, be it of another folder's runtime. @param {any} value @returns {value is Tensor} */
export const isTensor = value => value?.shape !== undefined && value.dtype !== undefined;

/** The shape of nested arrays. @param {any} value @returns {number[]} */
export const nestedShape = value => Array.isArray(value) || ArrayBuffer.isView(value)
  ? [/** @type {any} */ (value).length, ...(Array.isArray(value) && value.length ? nestedShape(value[0]) : [])] : [];
/** @param {any} value @returns {any[]} */
const flat = value => Array.isArray(value) ? value.flatMap(flat) : ArrayBuffer.isView(value) ? Array.from(/** @type {any} */ (value)) : [value];

/**
 * The bytes of what a page gives for a tensor, in whole words.
 * @param {string} name @param {DType} dtype @param {number[]} shape @param {Feed} value
 */
export function encode(name, dtype, shape, value) {
  const wrong = (/** @type {string} */ got) => new TypeError(`${name} is a ${dtype} tensor of shape [${shape}], not ${got}`);
  if (value === undefined || value === null || typeof value === 'string') throw wrong(String(value));
  let data;
  if (isTensor(value)) {
    if (value.dtype !== dtype || String(value.shape) !== String(shape)) throw wrong(`${value.dtype} of shape [${value.shape}]`);
    data = value.data;
  } else if (ArrayBuffer.isView(value)) data = value; // of any shape: its elements are taken in order
  else {
    const own = nestedShape(value), complex = width(dtype) > 1 ? [...shape, 2] : shape;
    data = flat(value);
    if (data.length !== numel(complex) || own.length > 1 && String(own) !== String(complex)) throw wrong(`of shape [${own}]`);
  }
  if (/** @type {any} */ (data).length !== numel(shape) * width(dtype)) throw wrong(`${/** @type {any} */ (data).length} numbers`);
  data = new Tensor(dtype, data, shape).data;
  if (dtype in HALVES) data = HALVES[/** @type {'float16'} */ (dtype)].to(data);
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  if (bytes.length % 4 === 0) return bytes;
  const padded = new Uint8Array(bytes.length + 3 & ~3);
  padded.set(bytes);
  return padded;
}

/**
 * The tensor that lies in bytes of the GPU's.
 * @param {DType} dtype @param {number[]} shape @param {ArrayBuffer} bytes
 */
export function decode(dtype, shape, bytes) {
  let data = new ARRAYS[dtype](bytes);
  if (dtype in HALVES) data = HALVES[/** @type {'float16'} */ (dtype)].from(data);
  return new Tensor(dtype, data, shape);
}
