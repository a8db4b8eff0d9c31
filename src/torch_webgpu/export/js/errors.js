/**
 * What went wrong, for a page to act on:
 * `insecure` no https; `unsupported` a browser without WebGPU; `no-adapter` no GPU that it may use; `needs` a GPU without
 * what the model needs; `network`; `format` files that are not an export, or were changed; `compile` a kernel that the
 * browser refuses; `out-of-memory`; `index` an index out of range; `lost` the GPU is gone: load again; `gpu` anything else.
 * @typedef {'insecure'|'unsupported'|'no-adapter'|'needs'|'network'|'format'|'compile'|'out-of-memory'|'index'|'lost'|'gpu'} Kind
 */

export class WebGPUError extends Error {
  /**
   * @param {Kind} kind
   * @param {string} message
   * @param {unknown} [cause]
   */
  constructor(kind, message, cause) {
    super(message, {cause});
    this.name = 'WebGPUError';
    this.kind = kind;
  }
}
