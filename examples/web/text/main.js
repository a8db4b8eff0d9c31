import {fail, load, ready, say} from '../load.js';
import {Model} from './torch-webgpu/index.js';

const $ = id => document.getElementById(id);
const model = await load(Model).catch(fail);
if (model) {
  const {alphabet, generation} = model.metadata;
  let stop = null;

  async function generate() {
    const known = [...$('prompt').value].filter(c => alphabet.includes(c)), prompt = known.slice(-(generation.max_length - 64));
    if (!prompt.length) { say('Write a beginning first.', true); return; }
    say('');
    stop = new AbortController();
    $('go').disabled = true;
    $('stop').disabled = false;
    const text = document.createTextNode('');
    $('text').replaceChildren(Object.assign(document.createElement('span'), {className: 'prompt', textContent: prompt.join('')}), text);
    const options = {temperature: Number($('temperature').value), seed: crypto.getRandomValues(new Uint32Array(1))[0], signal: stop.signal};
    let count = 0, first = 0;
    try {
      for await (const token of model.generate(prompt.map(c => alphabet.indexOf(c)), options)) {
        text.data += alphabet[token];
        first ||= performance.now();
        const seconds = (performance.now() - first) / 1000;
        if (++count > 1 && seconds) $('speed').textContent = `${count} characters, ${((count - 1) / seconds).toFixed(0)} a second`;
      }
    } catch (error) {
      if (error.name !== 'AbortError') fail(error);
    } finally {
      $('go').disabled = false;
      $('stop').disabled = true;
      document.documentElement.dataset.count = String(count);
    }
  }

  $('go').addEventListener('click', generate);
  $('stop').addEventListener('click', () => stop.abort());
  $('temperature').addEventListener('input', () => { $('shown').textContent = Number($('temperature').value).toFixed(1); });
  ready();
}
