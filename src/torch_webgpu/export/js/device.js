import {WebGPUError} from './errors.js';

/** @typedef {{features: string[], limits: Record<string, number>}} Requires */

/** Throws where browsers have neither WebGPU nor digests; what is no browser has no such contexts. */
export function requireSecure() {
  if (globalThis.isSecureContext === false) throw new WebGPUError('insecure', 'WebGPU needs a page from https:// or localhost.');
}

/** @param {GPURequestAdapterOptions} [options] @returns {Promise<GPUAdapter>} */
async function requestAdapter(options) {
  requireSecure();
  if (!globalThis.navigator?.gpu) throw new WebGPUError('unsupported', 'This browser has no WebGPU: a current Chrome, Edge, Firefox or Safari has.');
  const adapter = await navigator.gpu.requestAdapter({powerPreference: 'high-performance', ...options});
  if (!adapter) throw new WebGPUError('no-adapter', 'This browser has WebGPU, but no GPU that it may use here.');
  return adapter;
}

/**
 * What a GPU lacks of what a model needs, in words.
 * @param {Requires} requires
 * @param {GPUAdapter | GPUDevice} gpu
 */
export function missing({features, limits}, gpu) {
  const has = /** @type {Record<string, number>} */ (/** @type {unknown} */ (gpu.limits));
  return [
    ...features.filter(name => !gpu.features.has(/** @type {GPUFeatureName} */ (name))),
    ...Object.entries(limits).filter(([name, value]) => !(has[name] >= value)).map(([name, value]) => `${name} ${value} (has ${has[name]})`),
  ];
}

/**
 * A device with what a model needs, and no more.
 * @param {Requires} requires `model.requires`, or `requires` of plan.json
 * @param {GPURequestAdapterOptions} [options]
 */
export async function openDevice(requires, options) {
  const adapter = await requestAdapter(options), lacks = missing(requires, adapter);
  if (lacks.length) throw new WebGPUError('needs', `This GPU lacks ${lacks.join(', ')}.`);
  return adapter.requestDevice({
    requiredFeatures: /** @type {GPUFeatureName[]} */ (requires.features), requiredLimits: requires.limits,
  });
}

/**
 * What this browser's GPU offers; `available` is false with the `reason` where there is none.
 * @param {GPURequestAdapterOptions} [options]
 */
export async function getCapabilities(options) {
  try {
    const {info: {vendor, architecture, device, description, isFallbackAdapter}, features, limits} = await requestAdapter(options);
    /** @type {Record<string, number>} */ const values = {};
    for (const name in limits) values[name] = /** @type {any} */ (limits)[name];
    return {available: true, vendor, architecture, device, description, fallback: isFallbackAdapter === true, features: [...features], limits: values};
  } catch (error) {
    return {available: false, reason: /** @type {Error} */ (error).message};
  }
}
