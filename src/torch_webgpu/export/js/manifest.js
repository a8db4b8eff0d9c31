import {WebGPUError} from './errors.js';
import {isDType, sizeBytes} from './tensor.js';

/**
 * @typedef {import('./tensor.js').DType} DType
 * @typedef {{name: string, role: string, bytes: number, source?: [string, number, number]}} BufferSpec
 * @typedef {{digest: string, label: string, access: number[], words: number}} ModuleSpec
 * @typedef {{name: string, dtype: DType, shape: number[], buffer: number}} TensorSpec
 * @typedef {[number, [number, number, number][], number, [number, number, number]]} DispatchSpec module, bindings, parameters, grid
 * @typedef {[number, number]} ClearSpec buffer, bytes
 * @typedef {{inputs: TensorSpec[], outputs: TensorSpec[], steps: (DispatchSpec | ClearSpec)[], random: [number, number, number][],
 *   random_blocks: number}} ProgramSpec
 * @typedef {{bytes: number, sha256: string, chunks?: string[]}} FileSpec
 * @typedef {{format: number, producer: string, requires: import('./device.js').Requires, metadata: Record<string, any>,
 *   files: Record<string, FileSpec>, operators: Record<string, string>, buffers: BufferSpec[], modules: ModuleSpec[],
 *   programs: Record<string, ProgramSpec>, dynamic?: Record<string, import('./sizes.js').DynamicSpec>}} Manifest
 */

export const FORMAT = 1, CHUNK_BYTES = 1 << 24;
const ROLES = ['weight', 'state', 'constant', 'input', 'output', 'temporary', 'errors'];

/**
 * Checks a manifest, before anything is made of it, and returns it. Throws WebGPUError `format`.
 * @param {any} m
 * @returns {Manifest}
 */
export function checkManifest(m) {
  /** @param {unknown} ok @param {string} what */
  const expect = (ok, what) => { if (!ok) throw new WebGPUError('format', `plan.json: ${what}`); };
  const isObject = (/** @type {any} */ v) => typeof v === 'object' && v !== null && !Array.isArray(v);
  const isWithin = (/** @type {any} */ v, /** @type {number} */ low, high = Number.MAX_SAFE_INTEGER) => Number.isInteger(v) && v >= low && v <= high;
  const isInteger = (/** @type {any} */ v) => isWithin(v, 0);
  const isBelow = (/** @type {any} */ v, /** @type {any[]} */ list) => isWithin(v, 0, list.length - 1);
  const isList = (/** @type {any} */ v, /** @type {(e: any) => unknown} */ check) => Array.isArray(v) && v.every(check);
  const isText = (/** @type {any} */ v) => typeof v === 'string';
  const isDigest = (/** @type {any} */ v) => isText(v) && /^[0-9a-f]{64}$/.test(v);
  const isName = (/** @type {any} */ v) => isText(v) && /^[\w.-]+$/.test(v) && !v.startsWith('.');

  expect(isObject(m) && isText(m.producer), 'this is no export of torch-webgpu');
  expect(m.format === FORMAT, `it has format ${m.format}, and this runtime reads format ${FORMAT}`);
  for (const part of ['requires', 'metadata', 'operators', 'files', 'programs']) expect(isObject(m[part]), `${part} is missing`);
  expect(isList(m.requires.features, isText) && isObject(m.requires.limits) && isList(Object.values(m.requires.limits), isInteger), 'requires is wrong');
  for (const [name, f] of Object.entries(m.files))
    expect(isName(name) && isObject(f) && isInteger(f.bytes) && isDigest(f.sha256)
      && (f.chunks ? isList(f.chunks, isDigest) && f.chunks.length === Math.ceil(f.bytes / CHUNK_BYTES) : f.bytes <= CHUNK_BYTES),
    `the entry of the file ${name} is wrong`);
  expect(m.files['kernels.json'] && m.files['params.bin'], 'a file is missing');
  expect(isList(m.buffers, b => isObject(b) && isText(b.name) && ROLES.includes(b.role) && isWithin(b.bytes, 16) && b.bytes % 16 === 0
    && (b.source === undefined || isList(b.source, v => v !== null) && b.source.length === 3 && m.files[b.source[0]] && isInteger(b.source[1])
      && isWithin(b.source[2], 0, b.bytes) && b.source[1] + b.source[2] <= m.files[b.source[0]].bytes)), 'a buffer is wrong');
  expect(isList(m.modules, k => isObject(k) && isText(k.digest) && isText(k.label) && isList(k.access, a => a === 0 || a === 1)
    && isWithin(k.words, 0, 16384)), 'a module is wrong');
  const tensor = (/** @type {any} */ t) => isObject(t) && isText(t.name) && isDType(t.dtype) && isList(t.shape, isInteger)
    && isBelow(t.buffer, m.buffers) && sizeBytes(t.dtype, t.shape) <= m.buffers[t.buffer].bytes;
  const binding = (/** @type {any} */ b) => isList(b, isInteger) && b.length === 3 && isBelow(b[0], m.buffers)
    && b[1] % 256 === 0 && b[2] > 0 && b[2] % 4 === 0 && b[1] + b[2] <= m.buffers[b[0]].bytes;
  const dispatch = (/** @type {any} */ s) => s.length === 4 && isBelow(s[0], m.modules) && isList(s[1], binding)
    && s[1].length === m.modules[s[0]].access.length && isInteger(s[2]) && s[2] % 256 === 0
    && s[2] + 4 * m.modules[s[0]].words <= m.files['params.bin'].bytes && isList(s[3], g => isWithin(g, 1, 65535)) && s[3].length === 3;
  const clear = (/** @type {any} */ s) => s.length === 2 && isBelow(s[0], m.buffers) && isWithin(s[1], 4, m.buffers[s[0]].bytes) && s[1] % 4 === 0;
  const random = (/** @type {any} */ r) => isList(r, isInteger) && r.length === 3 && 4 * r[0] < m.files['params.bin'].bytes && r[1] < 4;
  for (const [name, p] of Object.entries(m.programs)) {
    expect(isObject(p) && isList(p.inputs, tensor) && isList(p.outputs, tensor) && isList(p.random, random) && isInteger(p.random_blocks),
      `the program ${name} is wrong`);
    expect(isList(p.steps, s => Array.isArray(s) && (dispatch(s) || clear(s))), `a step of the program ${name} is wrong`);
  }
  return m;
}
