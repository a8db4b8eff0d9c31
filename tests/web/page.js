// What tests run in the page.
import * as runtime from '/runtime/index.js';
import {readSafetensors} from '/runtime/safetensors.js';

const {Model} = runtime;
Object.assign(globalThis, runtime);

/** A tensor as JSON. */
globalThis.packed = tensor => {
  const bytes = new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength);
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  return {dtype: tensor.dtype, shape: tensor.shape, base64: btoa(text)};
};
globalThis.packedAll = tensors => Object.fromEntries(Object.entries(tensors).map(([name, t]) => [name, packed(t)]));

/** The inputs of each program in a folder's example. */
globalThis.exampleOf = async url => {
  const feeds = {};
  for (const [key, tensor] of Object.entries(readSafetensors(await (await fetch(`${url}example.safetensors`)).arrayBuffer()))) {
    const [program, kind, ...name] = key.split('/');
    (feeds[program] ??= {in: {}, out: {}})[kind][name.join('/')] = tensor;
  }
  return feeds;
};

/** Loads a folder, and runs each program on its example, from the exported state. */
globalThis.runExample = async url => {
  const model = await Model.load(url), results = {};
  for (const [program, {in: feeds}] of Object.entries(await exampleOf(url))) {
    await model.state.reset();
    results[program] = packedAll(await model.run(program, feeds));
  }
  model.dispose();
  return results;
};

/** The kind and the message of what a call throws. */
globalThis.failure = async call => {
  try {
    await call();
    return null;
  } catch (error) {
    return {name: error.name, kind: error.kind, message: error.message};
  }
};

/** Counts WebGPU's calls from now on. */
globalThis.counted = {};
for (const [cls, names] of [
  [GPUComputePassEncoder, ['dispatchWorkgroups', 'setPipeline', 'setBindGroup']], [GPUQueue, ['submit', 'writeBuffer']],
  [GPUDevice, ['createBindGroup', 'createBuffer', 'createComputePipelineAsync', 'createShaderModule']],
  [GPUCommandEncoder, ['copyBufferToBuffer', 'beginComputePass']], [GPUBuffer, ['mapAsync']],
]) {
  for (const name of names) {
    const original = cls.prototype[name];
    cls.prototype[name] = function (...args) {
      counted[name] = (counted[name] ?? 0) + 1;
      return original.apply(this, args);
    };
  }
}
document.addEventListener('securitypolicyviolation', event => (globalThis.violations ??= []).push(event.violatedDirective));
document.documentElement.dataset.ready = '';
