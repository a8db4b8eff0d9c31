import {fill} from './memory.js';

/** The tensors that programs write: caches, statistics, what an optimizer trains. */
export class State {
  /** @param {import('./model.js').Model} model */
  constructor(model) {
    this.model = model;
  }

  get names() {
    return this.model.manifest.buffers.filter(b => b.role === 'state').map(b => b.name);
  }

  /** Puts everything back to what was exported. */
  reset() {
    const {model} = this;
    return model.queued(async () => {
      model.check();
      const encoder = model.device.createCommandEncoder();
      model.manifest.buffers.forEach((b, k) => { if (b.role === 'state' && !b.source) encoder.clearBuffer(model.buffers[k]); });
      model.device.queue.submit([encoder.finish()]);
      await fill(model.device, model.manifest, model.buffers, model.files, role => role === 'state');
    });
  }
}
