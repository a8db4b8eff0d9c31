import {WebGPUError} from './errors.js';
import {COMPUTE} from './usage.js';

/**
 * @typedef {import('./manifest.js').Manifest} Manifest
 * @typedef {import('./manifest.js').ProgramSpec} ProgramSpec
 * @typedef {{pipeline: GPUComputePipeline, layout: GPUBindGroupLayout, words: number}} Module
 * @typedef {{pipeline?: GPUComputePipeline, group?: GPUBindGroup, offsets: number[], grid: [number, number, number],
 *   clear?: GPUBuffer, bytes: number}} Step
 */

/**
 * All pipelines of a manifest, compiled side by side.
 * @param {GPUDevice} device @param {Manifest} manifest @param {Record<string, string>} kernels WGSL by digest
 * @param {(event: Record<string, any>) => void} [callback]
 * @returns {Promise<Module[]>}
 */
export async function compile(device, manifest, kernels, callback) {
  const visibility = COMPUTE, total = manifest.modules.length;
  /** @type {Map<string, GPUBindGroupLayout>} */ const layouts = new Map();
  let loaded = 0;
  return Promise.all(manifest.modules.map(async ({digest, label, access, words}) => {
    const key = `${access}/${words > 0}`;
    let layout = layouts.get(key);
    if (!layout) {
      /** @type {GPUBindGroupLayoutEntry[]} */
      const entries = access.map((written, binding) => ({binding, visibility, buffer: {type: written ? 'storage' : 'read-only-storage'}}));
      if (words) entries.push({binding: access.length, visibility, buffer: {type: 'uniform', hasDynamicOffset: true}});
      layouts.set(key, layout = device.createBindGroupLayout({entries}));
    }
    if (typeof kernels[digest] !== 'string') throw new WebGPUError('format', `kernels.json lacks the kernel ${label}`);
    const module = device.createShaderModule({code: kernels[digest], label});
    try {
      const pipeline = await device.createComputePipelineAsync({
        label, layout: device.createPipelineLayout({bindGroupLayouts: [layout]}), compute: {module, entryPoint: 'main'},
      });
      callback?.({status: 'compile', loaded: ++loaded, total});
      return {pipeline, layout, words};
    } catch (error) {
      const {messages} = await module.getCompilationInfo();
      const where = messages.filter(m => m.type === 'error').map(m => `${m.lineNum}:${m.linePos} ${m.message}`).join('; ');
      throw new WebGPUError('compile', `the kernel ${label} does not compile: ${where || /** @type {Error} */ (error).message}`, error);
    }
  }));
}

/**
 * A program's steps over buffers. Equal bind groups are one.
 * @param {GPUDevice} device @param {Manifest} manifest @param {Module[]} modules @param {GPUBuffer[]} buffers
 * @param {GPUBuffer} uniform
 * @returns {(spec: ProgramSpec) => Step[]}
 */
export function binder(device, manifest, modules, buffers, uniform) {
  /** @type {Map<string, GPUBindGroup>} */ const groups = new Map();
  return spec => spec.steps.map(step => {
    if (step.length === 2) return {clear: buffers[step[0]], bytes: step[1], offsets: [], grid: [0, 0, 0]};
    const [number, bindings, place, grid] = step, {pipeline, layout, words} = modules[number];
    const key = `${number}/${bindings.join('/')}`;
    let group = groups.get(key);
    if (!group) {
      const entries = bindings.map(([buffer, offset, size], binding) => ({binding, resource: {buffer: buffers[buffer], offset, size}}));
      if (words) entries.push({binding: bindings.length, resource: {buffer: uniform, offset: 0, size: 16 * Math.ceil(words / 4)}});
      groups.set(key, group = device.createBindGroup({layout, entries, label: manifest.modules[number].label}));
    }
    return {pipeline, group, offsets: words ? [place] : [], grid, bytes: 0};
  });
}

/** Encodes steps: one pass, unless a clear comes between. @param {GPUCommandEncoder} encoder @param {Step[]} steps */
export function encodeSteps(encoder, steps) {
  /** @type {GPUComputePassEncoder | null} */ let pass = null;
  for (const {pipeline, group, offsets, grid, clear, bytes} of steps) {
    if (clear) {
      pass?.end();
      pass = null;
      encoder.clearBuffer(clear, 0, bytes);
      continue;
    }
    pass ??= encoder.beginComputePass();
    pass.setPipeline(/** @type {GPUComputePipeline} */ (pipeline));
    pass.setBindGroup(0, /** @type {GPUBindGroup} */ (group), offsets);
    pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
  }
  pass?.end();
}
