import {WebGPUError} from './errors.js';
import {CHUNK_BYTES} from './manifest.js';

/**
 * @typedef {import('./manifest.js').FileSpec} FileSpec
 * @typedef {{progress_callback?: (event: Record<string, any>) => void, signal?: AbortSignal, cache?: boolean}} FileOptions
 */

const CACHE = 'torch-webgpu';

/** SHA-256 in hexadecimal digits. @param {ArrayBuffer | Uint8Array<ArrayBuffer>} data */
export async function sha256(data) {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', data));
  return Array.from(digest, byte => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * Asks the server whether what the browser keeps is current: files of two exports do not go together.
 * @param {string} url @param {AbortSignal} [signal] @param {number} [from] first byte
 * @returns {Promise<Response>}
 */
export async function request(url, signal, from = 0) {
  try {
    const response = await fetch(url, {signal, cache: 'no-cache', ...(from ? {headers: {Range: `bytes=${from}-`}} : {})});
    if (!response.ok) throw new WebGPUError('network', `${url}: ${response.status} ${response.statusText}`);
    return response;
  } catch (error) {
    throw failure(url, error);
  }
}

/** An aborted signal's own reason stays; what else fails while something travels is the network's. @param {string} url @param {any} error */
const failure = (url, error) => error instanceof WebGPUError || error?.name === 'AbortError' || error?.name === 'TimeoutError' ? error
  : new WebGPUError('network', `${url}: ${error?.message ?? error}`, error);

/** The files of a folder: each chunk is checked by its digest before it is used, and kept for the next visit. */
export class Files {
  /** @param {string} base @param {Record<string, FileSpec>} table @param {FileOptions} options */
  constructor(base, table, options) {
    this.base = base; this.table = table; this.options = options;
    /** Loading failed: what is still on its way is told to nobody. */
    this.over = false;
    /** @type {Promise<Cache | null>} */
    this.cache = options.cache !== false && globalThis.caches ? caches.open(CACHE).catch(() => null) : Promise.resolve(null);
  }

  /** @param {Record<string, any>} event */
  tell(event) {
    if (!this.over) this.options.progress_callback?.(event);
  }

  /** @param {string} name @param {number} chunk */
  key(name, chunk) {
    const {sha256: digest, chunks = [digest]} = this.table[name];
    return `${new URL(name, this.base).href}?chunk=${chunk}&sha256=${chunks[chunk]}`;
  }

  /**
   * A kept chunk, if it is there and is what it was.
   * @param {string} name @param {number} chunk
   */
  async kept(name, chunk) {
    const cache = await this.cache, key = this.key(name, chunk), response = await cache?.match(key).catch(() => undefined);
    if (!response) return null;
    const data = await response.arrayBuffer();
    if (await sha256(data) === key.slice(-64)) return new Uint8Array(data);
    await cache?.delete(key);
    return null;
  }

  /**
   * The chunks of a file in order, with the first byte of each. What is in memory at once is a chunk.
   * @param {string} name
   * @returns {AsyncGenerator<[number, Uint8Array<ArrayBuffer>]>}
   */
  async* chunks(name) {
    const {bytes, sha256: digest, chunks = [digest]} = this.table[name], url = new URL(name, this.base).href, {signal} = this.options;
    const tell = (/** @type {number} */ loaded) => this.tell({status: 'progress', file: name, loaded, total: bytes, progress: 100 * loaded / bytes});
    /** @type {ReadableStreamDefaultReader<Uint8Array> | undefined} */ let reader;
    /** What the network gave, up to byte `at`, and was not used. */
    let at = 0, rest = new Uint8Array(0);
    try {
      for (let k = 0, from = 0; k < chunks.length; from += CHUNK_BYTES, k++) {
        signal?.throwIfAborted();
        if (this.over) return;
        const size = Math.min(CHUNK_BYTES, bytes - from);
        let data = reader ? null : await this.kept(name, k);
        if (!data) {
          if (!reader) {
            const response = await request(url, signal, from);
            reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
            at = response.status === 206 ? from : 0;
          }
          data = new Uint8Array(size);
          let filled = 0;
          while (filled < size) {
            if (!rest.length) {
              const {value, done} = await reader.read().catch(error => { throw failure(url, error); });
              if (done) throw new WebGPUError('network', `${url}: ended after ${at} of ${bytes} bytes`);
              rest = new Uint8Array(value);
              at += rest.length;
              if (at <= from) { rest = rest.subarray(rest.length); continue; } // a server without ranges sends it all
              if (at - rest.length < from) rest = rest.subarray(rest.length - (at - from));
            }
            const part = rest.subarray(0, size - filled);
            data.set(part, filled);
            filled += part.length;
            rest = rest.subarray(part.length);
            tell(from + filled);
          }
          if (await sha256(data) !== chunks[k]) throw new WebGPUError('format', `${url} is not what was exported: bytes ${from} to ${from + size} have changed`);
          await this.keep(this.key(name, k), data);
        } else tell(from + size);
        yield [from, data];
      }
    } finally {
      reader?.cancel().catch(() => {});
    }
  }

  /** @param {string} key @param {Uint8Array<ArrayBuffer>} data */
  async keep(key, data) {
    try {
      await (await this.cache)?.put(key, new Response(data));
    } catch {
      this.cache = Promise.resolve(null); // no room: go on without
    }
  }

  /** A whole file. @param {string} name */
  async bytes(name) {
    const whole = new Uint8Array(this.table[name].bytes);
    for await (const [from, data] of this.chunks(name)) whole.set(data, from);
    return whole;
  }

  /** @param {string} name */
  async json(name) {
    return JSON.parse(new TextDecoder().decode(await this.bytes(name)));
  }

  /** Forgets what was kept of earlier exports to this folder. */
  async tidy() {
    const cache = await this.cache, current = new Set();
    for (const [name, {chunks = [0]}] of Object.entries(this.table)) chunks.forEach((_, k) => current.add(this.key(name, k)));
    for (const {url} of await cache?.keys() ?? [])
      if (url.startsWith(this.base) && !url.slice(this.base.length, url.indexOf('?chunk=')).includes('/') && !current.has(url)) await cache?.delete(url);
  }
}
