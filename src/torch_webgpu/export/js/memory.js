import {WebGPUError} from './errors.js';
import {COPY_DST, COPY_SRC, STORAGE, UNIFORM} from './usage.js';

/**
 * @typedef {import('./manifest.js').Manifest} Manifest
 * @typedef {import('./files.js').Files} Files
 */

/**
 * The buffers of a manifest. Throws WebGPUError `out-of-memory` with what was asked for.
 * @param {GPUDevice} device @param {Manifest} manifest @param {Uint32Array<ArrayBuffer>} params
 */
export async function allocate(device, manifest, params) {
  const total = manifest.buffers.reduce((sum, b) => sum + b.bytes, 0);
  device.pushErrorScope('validation');
  device.pushErrorScope('out-of-memory');
  /** @type {GPUBuffer[]} */ const buffers = [];
  let thrown;
  try {
    for (const {name, bytes} of manifest.buffers) buffers.push(device.createBuffer({label: name, size: bytes, usage: STORAGE | COPY_SRC | COPY_DST}));
    buffers.push(device.createBuffer({label: 'parameters', size: Math.max(256, params.byteLength), usage: UNIFORM | COPY_DST}));
  } catch (error) {
    /** Some browsers raise for sizes that no device has. */
    thrown = error;
  }
  const scopes = await Promise.all([device.popErrorScope(), device.popErrorScope()]), error = scopes[0] ?? scopes[1] ?? thrown;
  if (error) {
    buffers.forEach(buffer => buffer.destroy());
    const message = /** @type {Error} */ (error).message;
    throw new WebGPUError('out-of-memory', `The GPU has no ${(total / 1e6).toFixed(1)} MB for this model: ${message}`, error);
  }
  const uniform = /** @type {GPUBuffer} */ (buffers.pop());
  device.queue.writeBuffer(uniform, 0, params);
  return {buffers, uniform};
}

/**
 * Streams the first contents of buffers from their files, a chunk at a time.
 * @param {GPUDevice} device @param {Manifest} manifest @param {GPUBuffer[]} buffers @param {Files} files
 * @param {(role: string) => boolean} wanted
 */
export async function fill(device, manifest, buffers, files, wanted) {
  /** @type {Map<string, {buffer: GPUBuffer, start: number, end: number}[]>} */ const places = new Map();
  manifest.buffers.forEach(({role, source}, k) => {
    if (!source || !source[2] || !wanted(role)) return;
    const [file, start, bytes] = source;
    places.set(file, [...places.get(file) ?? [], {buffer: buffers[k], start, end: start + bytes}]);
  });
  for (const [file, tensors] of places) {
    tensors.sort((a, b) => a.start - b.start);
    /** The bytes of a word that a chunk's end cut. */
    const cut = new Uint8Array(4);
    for await (const [from, data] of files.chunks(file)) {
      for (const {buffer, start, end} of tensors) {
        if (end <= from || start >= from + data.length) continue;
        let low = Math.max(start, from), high = Math.min(end, from + data.length);
        const carried = (low - start) % 4; // these are in `cut`
        if (carried) {
          const more = Math.min(4 - carried, high - low);
          cut.fill(0, carried);
          cut.set(data.subarray(low - from, low - from + more), carried);
          device.queue.writeBuffer(buffer, low - start - carried, cut);
          low += more;
        }
        const words = high - low & ~3;
        if (words) device.queue.writeBuffer(buffer, low - start, data, low - from, words);
        if (low + words < high) {
          cut.fill(0);
          cut.set(data.subarray(low + words - from, high - from));
          if (high === end) device.queue.writeBuffer(buffer, low + words - start, cut);
        }
      }
    }
  }
}

/**
 * Bytes by role, and in all, as `torch.webgpu.memory_stats` has them of a process.
 * @param {Manifest} manifest @param {number} uniform @param {number} staging
 */
export function statistics(manifest, uniform, staging) {
  /** @type {Record<string, number>} */ const stats = {parameters: uniform, staging};
  for (const {role, bytes} of manifest.buffers) stats[role] = (stats[role] ?? 0) + bytes;
  return {...stats, total: Object.values(stats).reduce((a, b) => a + b, 0)};
}
