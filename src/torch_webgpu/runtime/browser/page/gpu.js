/**
 * Runs the frames of a Python program on a device. What a frame says is checked before it is used: a wrong one is an
 * Error here, and ends the session. What WebGPU has to say against a call goes into the reply.
 */
const MAP_READ = 1, COMPUTE = 4, WORK_DONE = 1, READ = 2, HEADER_WORDS = 6;
const MAX_FRAME_BYTES = 64 << 20, MAX_OBJECTS = 1 << 22, MAX_READ_BYTES = 64 << 20, SETTLE_BYTES = 16 << 20, MAX_MESSAGE = 8000;
const [BUFFER, SHADER, LAYOUT, PIPELINE, GROUP] = [1, 2, 3, 4, 5];
/** @type {GPUErrorFilter[]} */ const FILTERS = ['internal', 'out-of-memory', 'validation'];
const KINDS = ['validation', 'out of memory', 'internal'];
const decoder = new TextDecoder('utf-8', {fatal: true});

/** @typedef {{buffer: GPUBuffer, size: number, users: number, released: boolean}} Held */
/** @typedef {{group: GPUBindGroup, buffers: Held[]}} Bound */

/** Words and bytes of a frame, in order. */
class Words {
  /** @param {ArrayBuffer} frame @param {number} first @param {number} end in words */
  constructor(frame, first = 0, end = frame.byteLength / 4) {
    this.frame = frame;
    this.words = new Uint32Array(frame);
    this.at = first;
    this.end = end;
  }

  next() {
    if (this.at >= this.end) throw new Error('a command ends too early');
    return this.words[this.at++];
  }

  /** @param {number} count */
  part(count) {
    const first = this.at, end = first + count;
    if (end > this.end) throw new Error('a command is longer than its frame');
    this.at = end;
    return new Words(this.frame, first, end);
  }

  /** @param {number} count bytes, which are whole words with what fills them up */
  bytes(count) {
    const {at} = this.part(Math.ceil(count / 4));
    return new Uint8Array(this.frame, at * 4, count);
  }

  /** @param {number} count */
  text(count) {
    return decoder.decode(this.bytes(count));
  }
}

export class Gpu {
  /** @param {GPUDevice} device @param {number} epoch which device of the program this is */
  constructor(device, epoch) {
    this.device = device;
    this.epoch = epoch;
    /** @type {any[][]} */ this.tables = [[], [], [], [], [], []];
    this.unsettled = 0;
    this.commands = 0;
    this.memory = 0;
  }

  /** @param {number} kind @param {number} number @returns {any} */
  get(kind, number) {
    const found = this.tables[kind][number];
    if (!found) throw new Error(`there is no object ${number} of kind ${kind}`);
    return found;
  }

  /** @param {number} kind @param {number} number @param {object} object */
  put(kind, number, object) {
    if (number >= MAX_OBJECTS || this.tables[kind][number]) throw new Error(`object ${number} of kind ${kind} cannot be made`);
    this.tables[kind][number] = object;
  }

  /**
   * Runs a frame; the reply to it, once all that it waits for is there.
   * @param {ArrayBuffer} frame
   * @returns {Promise<ArrayBuffer> | null} null for a frame of another device
   */
  run(frame) {
    if (frame.byteLength % 4 || frame.byteLength < HEADER_WORDS * 4 || frame.byteLength > MAX_FRAME_BYTES) throw new Error(`a frame of ${frame.byteLength} bytes`);
    const words = new Words(frame);
    const [epoch, number, want, buffer, size] = [words.next(), words.next(), words.next(), words.next(), words.next()];
    words.next();
    if (epoch !== this.epoch) return null;
    if (want > READ || (want === READ && (!size || size % 4 || size > MAX_READ_BYTES))) throw new Error('a wish that is none');
    for (const filter of FILTERS) this.device.pushErrorScope(filter);
    try {
      while (words.at < words.end) this.command(words.next(), words.part(words.next()));
    } finally {
      this.popped = FILTERS.map(() => this.device.popErrorScope());
    }
    this.unsettled += frame.byteLength;
    return this.reply(number, this.popped, want, want === READ ? this.get(BUFFER, buffer) : null, size);
  }

  /**
   * @param {number} number
   * @param {Promise<GPUError | null>[]} popped
   * @param {number} want
   * @param {Held | null} held
   * @param {number} size
   */
  async reply(number, popped, want, held, size) {
    const settle = want === WORK_DONE || this.unsettled > SETTLE_BYTES;
    if (settle) this.unsettled = 0;
    const mapped = want === READ && held ? held.buffer.mapAsync(MAP_READ, 0, size).then(() => '', String) : null;
    const done = settle ? this.device.queue.onSubmittedWorkDone().catch(() => {}) : null;
    /** @type {string[][]} */ const errors = [];
    for (const [at, outcome] of (await Promise.allSettled(popped)).entries()) {
      if (outcome.status === 'fulfilled' && outcome.value) errors.push([KINDS[at], outcome.value.message.slice(0, MAX_MESSAGE)]);
    }
    await done;
    const failed = await mapped;
    if (failed) errors.push(['internal', failed.slice(0, MAX_MESSAGE)]);
    const ok = held && failed === '';
    const text = errors.length ? new TextEncoder().encode(JSON.stringify(errors)) : new Uint8Array(0);
    const start = 16 + Math.ceil(text.byteLength / 4) * 4, reply = new Uint8Array(start + (ok ? size : 0));
    new Uint32Array(reply.buffer, 0, 4).set([this.epoch, number, text.byteLength, ok ? size : 0]);
    reply.set(text, 16);
    if (ok) {
      reply.set(new Uint8Array(held.buffer.getMappedRange(0, size)), start);
      held.buffer.unmap();
    }
    return reply.buffer;
  }

  /** @param {number} code @param {Words} words */
  command(code, words) {
    this.commands++;
    const make = [null, this.createBuffer, this.writeBuffer, this.createShader, this.createLayout, this.createPipeline, this.createGroup, this.release, this.submit][code];
    if (!make) throw new Error(`there is no command ${code}`);
    make.call(this, words);
    if (words.at !== words.end) throw new Error(`command ${code} has too many words`);
  }

  /** @param {Words} words */
  createBuffer(words) {
    const number = words.next(), usage = words.next(), size = words.next();
    const buffer = this.device.createBuffer({size, usage});
    this.memory += size;
    this.put(BUFFER, number, {buffer, size, users: 0, released: false});
  }

  /** @param {Words} words */
  writeBuffer(words) {
    const {buffer} = this.get(BUFFER, words.next()), offset = words.next();
    this.device.queue.writeBuffer(buffer, offset, /** @type {BufferSource} */ (words.bytes(words.next())));
  }

  /** @param {Words} words */
  createShader(words) {
    const number = words.next(), label = words.next(), code = words.next();
    this.put(SHADER, number, this.device.createShaderModule({label: words.text(label), code: words.text(code)}));
  }

  /** @param {Words} words */
  createLayout(words) {
    const number = words.next(), uniform = words.next();
    /** @type {GPUBindGroupLayoutEntry[]} */ const entries = [];
    while (words.at < words.end) entries.push({binding: entries.length, visibility: COMPUTE, buffer: {type: words.next() ? 'storage' : 'read-only-storage'}});
    if (uniform) entries.push({binding: entries.length, visibility: COMPUTE, buffer: {type: 'uniform', hasDynamicOffset: true}});
    this.put(LAYOUT, number, this.device.createBindGroupLayout({entries}));
  }

  /** @param {Words} words */
  createPipeline(words) {
    const number = words.next(), module = this.get(SHADER, words.next()), layout = this.get(LAYOUT, words.next());
    const pipelineLayout = this.device.createPipelineLayout({bindGroupLayouts: [layout]});
    this.put(PIPELINE, number, this.device.createComputePipeline({label: words.text(words.next()), layout: pipelineLayout, compute: {module, entryPoint: 'main'}}));
  }

  /** @param {Words} words */
  createGroup(words) {
    const number = words.next(), layout = this.get(LAYOUT, words.next());
    /** @type {GPUBindGroupEntry[]} */ const entries = [];
    /** @type {Held[]} */ const buffers = [];
    while (words.at < words.end) {
      const held = this.get(BUFFER, words.next());
      entries.push({binding: entries.length, resource: {buffer: held.buffer, offset: words.next(), size: words.next()}});
      buffers.push(held);
    }
    for (const held of buffers) held.users++;
    this.put(GROUP, number, {group: this.device.createBindGroup({layout, entries}), buffers});
  }

  /**
   * Memory is given back at once, not when a garbage collection finds it, but never while a bind group names it.
   * @param {Words} words
   */
  release(words) {
    const kind = words.next(), number = words.next();
    if (kind < BUFFER || kind > GROUP) throw new Error(`there is no kind ${kind}`);
    const object = this.get(kind, number);
    delete this.tables[kind][number];
    if (kind === BUFFER) object.released = true;
    for (const held of kind === GROUP ? object.buffers : kind === BUFFER ? [object] : []) {
      if (kind === GROUP) held.users--;
      if (held.released && !held.users) {
        held.buffer.destroy();
        this.memory -= held.size;
      }
    }
  }

  /** @param {Words} words */
  submit(words) {
    const encoder = this.device.createCommandEncoder();
    /** @type {GPUComputePassEncoder | null} */ let pass = null;
    const inPass = () => {
      if (!pass) throw new Error('a dispatch outside of a pass');
      return pass;
    };
    while (words.at < words.end) {
      this.commands++;
      switch (words.next()) {
        case 1: pass = encoder.beginComputePass(); break;
        case 2: inPass().setPipeline(this.get(PIPELINE, words.next())); break;
        case 3: inPass().setBindGroup(0, this.get(GROUP, words.next()).group); break;
        case 4: inPass().setBindGroup(0, this.get(GROUP, words.next()).group, [words.next()]); break;
        case 5: inPass().dispatchWorkgroups(words.next(), words.next(), words.next()); break;
        case 6: inPass().end(); pass = null; break;
        case 7: encoder.copyBufferToBuffer(this.get(BUFFER, words.next()).buffer, words.next(), this.get(BUFFER, words.next()).buffer, words.next(), words.next()); break;
        case 8: encoder.clearBuffer(this.get(BUFFER, words.next()).buffer, words.next(), words.next()); break;
        default: throw new Error('there is no such call');
      }
    }
    this.device.queue.submit([encoder.finish()]);
  }
}
