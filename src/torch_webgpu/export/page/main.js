// A form for each program of the model in this folder.
import {Model} from './torch-webgpu/index.js';
import {readSafetensors} from './torch-webgpu/safetensors.js';

const $ = id => document.getElementById(id);
const element = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};
const megabytes = bytes => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

/** What happened, and what the visitor can do, in a sentence. */
const ADVICE = {
  insecure: 'Open it from https:// or localhost.', lost: 'Reload the page.', network: 'Reload the page to try again.',
  'out-of-memory': 'Close other tabs that use the GPU, or try a smaller model.', format: 'It has to be exported again.',
};

function say(text, bad = false) {
  $('status').textContent = text;
  $('status').className = bad ? 'bad' : '';
}

function fail(error) {
  document.documentElement.dataset.state = 'failed';
  $('progress').hidden = true;
  say(`${error.message} ${ADVICE[error.kind] ?? ''}`.trim(), true);
}

/** A tensor as text: all of it, or its beginning. */
function shown(tensor) {
  const number = value => typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value;
  const text = JSON.stringify(tensor.tolist(), (_, v) => typeof v === 'bigint' ? Number(v)
    : typeof v === 'number' && !Number.isFinite(v) ? String(v) : number(v));
  return text.length > 20000 ? `${text.slice(0, 20000)} …` : text;
}

/** What a text area says; numbers that JSON lacks are the strings "NaN" and "Infinity". */
const numbers = text => JSON.parse(text, (_, value) => typeof value === 'string' ? Number(value) : value);

const far = (a, b) => Object.is(a, b) || a === b ? 0 : Math.abs(Number(a) - Number(b));

/** The largest difference from the example's outputs, relative to the largest number of each. */
function difference(outputs, expected) {
  let worst = 0;
  for (const [name, {data}] of Object.entries(expected)) {
    const finite = Array.from(data, Number).filter(Number.isFinite), scale = Math.max(1e-6, ...finite.map(Math.abs));
    data.forEach((value, k) => { worst = Math.max(worst, far(outputs[name].data[k], value) / scale || 0); });
  }
  return worst;
}

function form(model, name, {inputs}, example) {
  const areas = inputs.map(({name: input, dtype, shape}) => {
    const area = element('textarea', {spellcheck: false, name: input});
    area.value = example?.in[input] ? shown(example.in[input]) : '';
    return element('label', {}, element('span', {}, element('b', {textContent: input}), ` ${dtype} [${shape.join(', ')}]`), area);
  });
  const run = element('button', {className: 'first', textContent: 'Run'});
  const check = element('button', {type: 'button', textContent: 'Check the example', hidden: !example || !Object.keys(example.out).length});
  const time = element('span', {className: 'time'}), results = element('div', {ariaLive: 'polite'});
  const node = element('form', {}, element('h2', {textContent: name}), ...areas, element('div', {className: 'buttons'}, run, check, time), results);

  const perform = async work => {
    const active = document.activeElement;
    run.disabled = check.disabled = true;
    try {
      const start = performance.now(), outputs = await work();
      time.textContent = `${(performance.now() - start).toFixed(1)} ms`;
      say('');
      results.replaceChildren(...Object.entries(outputs).map(([output, tensor]) => element('div', {className: 'output'},
        element('span', {}, element('b', {textContent: output}), ` ${tensor.dtype} [${tensor.shape.join(', ')}]`), element('pre', {textContent: shown(tensor)}))));
      return outputs;
    } catch (error) {
      fail(error);
      return null;
    } finally {
      run.disabled = check.disabled = false;
      if (active === run || active === check) active.focus(); // which a disabled button loses
    }
  };
  node.addEventListener('submit', event => {
    event.preventDefault();
    perform(() => model.run(name, Object.fromEntries(inputs.map(({name: input}) => [input, numbers(node.elements[input].value)]))));
  });
  check.addEventListener('click', async () => {
    await model.state.reset();
    const outputs = await perform(() => model.run(name, example.in));
    if (!outputs) return;
    const worst = difference(outputs, example.out);
    time.textContent += worst ? ` · differs from PyTorch on the CPU by at most ${worst.toPrecision(2)} of the largest number`
      : ' · the same numbers as of PyTorch on the CPU';
    document.documentElement.dataset.difference = String(worst);
  });
  return node;
}

/** The inputs and outputs of each program's example, where the folder has one. */
async function examples(model) {
  const programs = {};
  if (!model.manifest.files['example.safetensors']) return programs;
  const file = await model.files.bytes('example.safetensors');
  for (const [key, tensor] of Object.entries(readSafetensors(file.buffer))) {
    const [program, kind, ...name] = key.split('/');
    (programs[program] ??= {in: {}, out: {}})[kind][name.join('/')] = tensor;
  }
  return programs;
}

async function start() {
  const loaded = {}, totals = {};
  const progress_callback = ({status, file, loaded: n, total}) => {
    if (status === 'ready') return;
    loaded[file ?? status] = n;
    totals[file ?? status] = total;
    const compiling = status === 'compile' && n < total;
    say(compiling ? `Compiling kernels: ${n} of ${total} …` : file ? `Loading ${file} …` : 'Loading …');
    const sum = record => Object.entries(record).reduce((all, [key, value]) => all + value * (key === 'compile' ? 1e5 : 1), 0);
    $('progress').value = 100 * sum(loaded) / sum(totals);
  };
  const model = await Model.load('./', {progress_callback}), example = await examples(model);
  const title = model.metadata.title ?? 'Model', {architecture, vendor} = model.device.adapterInfo ?? {};
  document.title = $('title').textContent = title;
  $('programs').append(...Object.entries(model.signatures).map(([name, signature]) => form(model, name, signature, example[name])));
  const facts = {
    'Exported by': model.manifest.producer, GPU: [vendor, architecture].filter(Boolean).join(' ') || 'unnamed',
    'Memory on the GPU': megabytes(model.memory_stats().total), Kernels: String(model.manifest.modules.length), 'Runs on': 'this device only: nothing is sent',
  };
  $('facts').append(...Object.entries(facts).flatMap(([key, value]) => [element('dt', {textContent: key}), element('dd', {textContent: value})]));
  $('programs').hidden = $('about').hidden = false;
  $('progress').hidden = true;
  say('Ready. It runs on your GPU; nothing leaves this device.');
  document.documentElement.dataset.state = 'ready';
}

start().catch(fail);
