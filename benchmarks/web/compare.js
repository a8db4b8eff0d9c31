// Loads a model with one of the engines, runs it, and tells what that took. The page has nothing else.
import {readSafetensors} from './runtime/safetensors.js';

const counts = {};
for (const [cls, names] of [
  [GPUComputePassEncoder, ['dispatchWorkgroups', 'dispatchWorkgroupsIndirect']], [GPUQueue, ['submit', 'writeBuffer']],
  [GPUDevice, ['createBindGroup', 'createBuffer']], [GPUCommandEncoder, ['copyBufferToBuffer', 'beginComputePass']], [GPUBuffer, ['mapAsync']],
]) {
  for (const name of names) {
    const original = cls.prototype[name];
    cls.prototype[name] = function (...args) {
      counts[name] = (counts[name] ?? 0) + 1;
      return original.apply(this, args);
    };
  }
}

const engines = {
  async ours(folder, x) {
    const {Model} = await import(`./${folder}/ours/torch-webgpu/index.js`);
    const model = await Model.load(`./${folder}/ours`);
    return async () => (await model.run({x: x.data})).output.data;
  },
  async ort(folder, x, executionProviders) {
    const ort = await import('./ort/dist/ort.webgpu.bundle.min.mjs');
    ort.env.logLevel = 'error';
    const session = await ort.InferenceSession.create(`./${folder}/model.onnx`, {executionProviders});
    const feeds = {x: new ort.Tensor(x.dtype, x.data, x.shape)};
    return async () => (await session.run(feeds)).output.data;
  },
};

globalThis.compare = async (engine, folder, runs) => {
  const example = readSafetensors(await (await fetch(`./${folder}/ours/example.safetensors`)).arrayBuffer());
  const [x, expected] = ['in/x', 'out/output'].map(key => example[`forward/${key}`]);
  await (await fetch('/begin')).text(); // what was sent until now is not counted
  const start = performance.now();
  const run = engine === 'ours' ? await engines.ours(folder, x) : await engines.ort(folder, x, [engine.split('-')[1]]);
  const output = await run(), ready = performance.now() - start;
  const sent = Number(await (await fetch('/sent')).text());
  await run();
  for (const name of Object.keys(counts)) delete counts[name];
  await run();
  const calls = {...counts}, times = [];
  for (let k = 0; k < runs; k++) {
    const before = performance.now();
    await run();
    times.push(performance.now() - before);
  }
  times.sort((a, b) => a - b);
  const difference = output.reduce((most, value, k) => Math.max(most, Math.abs(value - expected.data[k])), 0);
  return {sent, ready, run: times[runs >> 1], least: times[0], difference, calls};
};
