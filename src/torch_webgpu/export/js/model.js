import {missing, openDevice, requireSecure} from './device.js';
import {WebGPUError} from './errors.js';
import {Files, request, sha256} from './files.js';
import {checkManifest} from './manifest.js';
import {allocate, fill, statistics} from './memory.js';
import {binder, compile, encodeSteps} from './program.js';
import {Generator} from './random.js';
import {State} from './state.js';
import {decode, encode, sizeBytes, Tensor} from './tensor.js';
import {COPY_DST, MAP_READ, READ} from './usage.js';

/**
 * @typedef {import('./tensor.js').Feed} Feed
 * @typedef {import('./files.js').FileOptions & {device?: GPUDevice, adapter?: GPURequestAdapterOptions, integrity?: string}} LoadOptions
 *   `device`: one of the page's, which stays its own. `integrity`: "sha256-" and the hexadecimal digest of plan.json.
 * @typedef {{outputs?: string[]}} RunOptions `outputs`: those that are read; the others stay on the GPU. All, if left out.
 */

const FLAG_BYTES = 64, INDEX_OUT_OF_RANGE = 1;

/** A model that `torch.webgpu.export` wrote, loaded onto a GPU. Runs of one model queue up. */
export class Model {
  /**
   * Loads a folder. Throws WebGPUError, whose `kind` says what is wrong.
   * @param {string | URL} url of the folder
   * @param {LoadOptions} [options] `progress_callback` gets {status: 'progress', file, loaded, total, progress},
   *   {status: 'compile', loaded, total} and {status: 'ready'}
   */
  static async load(url, options = {}) {
    requireSecure();
    const base = new URL(String(url).replace(/\/?$/, '/'), globalThis.location?.href).href, {signal, integrity} = options;
    const text = await (await request(`${base}plan.json`, signal)).arrayBuffer();
    if (integrity && integrity !== `sha256-${await sha256(text)}`) throw new WebGPUError('format', 'plan.json is not what the page expects');
    let data;
    try {
      data = JSON.parse(new TextDecoder().decode(text));
    } catch (error) {
      throw new WebGPUError('format', `${base}plan.json is no JSON`, error);
    }
    const manifest = checkManifest(data), files = new Files(base, manifest.files, options);
    if (options.device) {
      const lacks = missing(manifest.requires, options.device);
      if (lacks.length) throw new WebGPUError('needs', `The device lacks ${lacks.join(', ')}: open it with openDevice(requires).`);
    }
    const device = options.device ?? await openDevice(manifest.requires, options.adapter);
    const model = new Model(manifest, files, device, !options.device);
    try {
      if (manifest.dynamic) model.sizes = new (await import('./sizes.js')).Sizes(manifest);
      const [kernels, params] = await Promise.all([files.json('kernels.json'), files.bytes('params.bin')]);
      model.params = new Uint32Array(params.buffer);
      Object.assign(model, await allocate(device, manifest, model.params));
      const [modules] = await Promise.all([
        compile(device, manifest, kernels, event => files.tell(event)),
        fill(device, manifest, model.buffers, files, () => true),
      ]);
      signal?.throwIfAborted();
      const bind = binder(device, manifest, modules, model.buffers, model.uniform);
      for (const [name, spec] of Object.entries(manifest.programs)) model.programs.set(name, {spec, steps: bind(spec), staging: null});
      await device.queue.onSubmittedWorkDone();
      model.check();
    } catch (error) {
      files.over = true;
      model.dispose();
      throw model.lost ? model.lostError() : error;
    }
    files.tidy().catch(() => {});
    files.tell({status: 'ready'});
    return model;
  }

  /** @param {import('./manifest.js').Manifest} manifest @param {Files} files @param {GPUDevice} device @param {boolean} owned */
  constructor(manifest, files, device, owned) {
    this.manifest = manifest;
    this.metadata = manifest.metadata;
    this.requires = manifest.requires;
    this.device = device;
    this.generator = new Generator();
    this.state = new State(this);
    this.files = files;
    this.owned = owned;
    /** @type {GPUBuffer[]} */ this.buffers = [];
    /** @type {any} */ this.uniform = null;
    this.params = new Uint32Array(0);
    /** @type {Map<string, {spec: import('./manifest.js').ProgramSpec, steps: import('./program.js').Step[], staging: GPUBuffer | null}>} */
    this.programs = new Map();
    /** @type {import('./sizes.js').Sizes | null} */ this.sizes = null;
    /** @type {GPUDeviceLostInfo | null} */ this.lost = null;
    /** @type {string[]} */ this.errors = [];
    this.disposed = false;
    this.generating = false;
    /** @type {Promise<any>} */ this.last = Promise.resolve();
    this.flags = manifest.buffers.findIndex(b => b.role === 'errors');
    this.onError = (/** @type {GPUUncapturedErrorEvent} */ event) => { this.errors.push(event.error.message); };
    device.addEventListener('uncapturederror', this.onError);
    device.lost.then(info => { if (!this.disposed) this.lost = info; });
  }

  /** The names of the programs, and of what they take and give, as {name, dtype, shape}. A size that varies has a name there. */
  get signatures() {
    /** @typedef {import('./manifest.js').TensorSpec} TensorSpec @typedef {import('./sizes.js').SizeSpec} SizeSpec */
    const plain = (/** @type {TensorSpec[]} */ list, /** @type {SizeSpec[]} */ sizes) => list.map(({name, dtype, shape}) =>
      ({name, dtype, shape: sizes.length ? shape.map((n, d) => sizes.find(s => s.places[name]?.includes(d))?.name ?? n) : shape}));
    /** @type {[string, import('./manifest.js').ProgramSpec, SizeSpec[]][]} */
    const programs = this.sizes?.list() ?? Object.entries(this.manifest.programs).map(([name, p]) => [name, p, []]);
    return Object.fromEntries(programs.map(([name, p, sizes]) => [name, {inputs: plain(p.inputs, sizes), outputs: plain(p.outputs, [])}]));
  }

  /**
   * Runs a program; without a name `forward`, or the only one there is. Resolves to its outputs by name.
   * @param {string | Record<string, Feed>} program or the feeds
   * @param {any} [feeds] the inputs by name: typed arrays, nested arrays, numbers or Tensors
   * @param {RunOptions} [options]
   * @returns {Promise<Record<string, Tensor>>}
   */
  run(program, feeds, options) {
    if (typeof program !== 'string') return this.run('', program, feeds);
    return this.queued(async () => {
      const names = program ? [] : Object.keys({...this.manifest.dynamic, ...this.manifest.programs}), name = program || (names.includes('forward') ? 'forward' : names[0]);
      const fit = this.sizes?.chosen(name, feeds ?? {}), outputs = await this.runNow(fit?.name ?? name, fit?.feeds ?? feeds ?? {}, options ?? {});
      return fit ? fit.cut(outputs) : outputs;
    });
  }

  /**
   * Generates tokens after a prompt, of a model that `export_generation` wrote: `for await (const token of …)`; after
   * several prompts an array a step, with null for a text that has ended.
   * @template {import('./generate.js').Prompt | import('./generate.js').Prompt[]} T
   * @param {T} ids @param {import('./generate.js').GenerateOptions} [options]
   * @returns {AsyncGenerator<T extends import('./generate.js').Prompt ? number : (number | null)[]>}
   */
  async* generate(ids, options) {
    yield* (await import('./generate.js')).generate(this, ids, options);
  }

  /** The tokenizer that was exported with the model: `encode(text)`, `decode(ids)`. */
  async tokenizer() {
    if (!this.manifest.files['tokenizer.json']) throw new TypeError('this model was exported without a tokenizer');
    const [{Tokenizer}, json] = await Promise.all([import('./tokenizer.js'), this.files.json('tokenizer.json')]);
    return new Tokenizer(json);
  }

  /** Waits for all runs; throws what went wrong meanwhile. */
  sync() {
    return this.queued(async () => { await this.read([], true); });
  }

  /** @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  queued(work) {
    const result = this.last.then(work);
    this.last = result.catch(() => {});
    return result;
  }

  /** @param {string} name @param {Record<string, Feed>} feeds @param {RunOptions} options */
  async runNow(name, feeds, {outputs}) {
    this.check();
    const program = this.programs.get(name);
    if (!program) throw new TypeError(`there is no program ${name}: ${[...this.programs.keys()].join(', ')}`);
    const {spec, steps} = program, names = spec.inputs.map(i => i.name), {queue} = this.device;
    for (const given of Object.keys(feeds)) if (!names.includes(given)) throw new TypeError(`${name} has no input ${given}: ${names.join(', ')}`);
    for (const wanted of outputs ?? []) if (!spec.outputs.some(o => o.name === wanted)) throw new TypeError(`${name} has no output ${wanted}: ${spec.outputs.map(o => o.name).join(', ')}`);
    const data = spec.inputs.map(i => encode(i.name, i.dtype, i.shape, feeds[i.name]));
    spec.inputs.forEach((i, k) => { if (data[k].length) queue.writeBuffer(this.buffers[i.buffer], 0, /** @type {any} */ (data[k])); });
    if (spec.random.length) {
      const [first, end] = this.generator.draw(spec, this.params);
      queue.writeBuffer(this.uniform, 4 * first, this.params, first, end - first);
    }
    const encoder = this.device.createCommandEncoder({label: name});
    encodeSteps(encoder, steps);
    const wanted = spec.outputs.filter(o => outputs?.includes(o.name) ?? true);
    if (wanted.length) return this.read(wanted, false, encoder, program);
    queue.submit([encoder.finish()]);
    return {};
  }

  /**
   * Submits, and reads tensors and the flags that kernels raise.
   * @param {import('./manifest.js').TensorSpec[]} wanted @param {boolean} once whether the staging buffer is not kept
   * @param {GPUCommandEncoder} [encoder] @param {{staging: GPUBuffer | null}} [owner] who keeps it
   */
  async read(wanted, once, encoder = this.device.createCommandEncoder(), owner = {staging: null}) {
    this.check();
    let size = FLAG_BYTES;
    const places = wanted.map(({dtype, shape}) => {
      const place = size, bytes = sizeBytes(dtype, shape);
      size += 16 * Math.ceil(bytes / 16);
      return {place, bytes};
    });
    if (owner.staging && owner.staging.size < size) owner.staging = /** @type {null} */ (owner.staging.destroy() ?? null);
    const staging = owner.staging ??= this.device.createBuffer({label: 'staging', size, usage: MAP_READ | COPY_DST});
    if (this.flags >= 0) encoder.copyBufferToBuffer(this.buffers[this.flags], 0, staging, 0, FLAG_BYTES);
    wanted.forEach(({buffer}, k) => { if (places[k].bytes) encoder.copyBufferToBuffer(this.buffers[buffer], 0, staging, places[k].place, places[k].bytes + 3 & ~3); });
    this.device.queue.submit([encoder.finish()]);
    try {
      await staging.mapAsync(READ, 0, size);
    } catch (error) {
      await Promise.race([this.device.lost, new Promise(resolve => setTimeout(resolve, 1000))]); /** Firefox tells it later. */
      this.check();
      throw new WebGPUError('gpu', /** @type {Error} */ (error).message, error);
    }
    const bytes = staging.getMappedRange(0, size).slice(0);
    staging.unmap();
    if (once) { staging.destroy(); owner.staging = null; }
    this.check();
    this.checkFlags(new DataView(bytes));
    return Object.fromEntries(wanted.map(({name, dtype, shape}, k) => [name, decode(dtype, shape, bytes.slice(places[k].place, places[k].place + places[k].bytes))]));
  }

  /** @param {DataView} flags */
  checkFlags(flags) {
    const code = flags.getUint32(0, true);
    if (!code || this.flags < 0) return;
    const [operator, ...dims] = (this.manifest.operators[flags.getUint32(4, true)] ?? 'an_operator').replace(/^aten::/, '').split(' ');
    const value = flags.getBigInt64(8, true), size = flags.getBigInt64(16, true);
    const numbers = new Set(dims.filter(dim => dim.endsWith(`:${size}`)).map(dim => dim.split(':')[0]));
    this.device.queue.writeBuffer(this.buffers[this.flags], 0, new Uint8Array(FLAG_BYTES)); /** They stay until cleared. */
    if (code === INDEX_OUT_OF_RANGE) throw new WebGPUError('index', `${operator}: index ${value} is out of bounds for dimension ${[...numbers].join(' or ')} with size ${size}`.replace('  ', ' '));
    throw new WebGPUError('gpu', `${operator}: a kernel flagged error ${code} (values ${value}, ${size})`);
  }

  /** Throws what makes runs impossible, or went wrong since. */
  check() {
    if (this.disposed) throw new WebGPUError('gpu', 'this model was disposed of');
    if (this.lost) throw this.lostError();
    if (this.errors.length) throw new WebGPUError('gpu', this.errors.splice(0).join('\n'));
  }

  lostError() {
    return new WebGPUError('lost', `The GPU is gone (${this.lost?.message || this.lost?.reason}): load the model again.`);
  }

  /** Seeds what programs draw from. @param {number | bigint} seed */
  manual_seed(seed) {
    this.generator.manual_seed(seed);
  }

  /** Bytes of GPU memory by role, and `total`. */
  memory_stats() {
    return statistics(this.manifest, this.uniform?.size ?? 0, [...this.programs.values()].reduce((n, p) => n + (p.staging?.size ?? 0), 0));
  }

  /** Frees the buffers; and the device, unless the page brought it. */
  dispose() {
    if (this.disposed) return;
    this.disposed = true;
    for (const buffer of [...this.buffers, this.uniform, ...[...this.programs.values()].map(p => p.staging)]) buffer?.destroy();
    this.device.removeEventListener('uncapturederror', /** @type {any} */ (this.onError));
    if (this.owned) this.device.destroy();
  }
}
